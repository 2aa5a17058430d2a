//! The only maker and parser of keys. Numbers have a fixed width, so that keys sort as their numbers do; no key is a prefix (by path) of
//! another, because MinIO hides `x/y` where an object `x` exists. Nothing relies on an order across `/`, `-` and `.`.

use object_store::path::Path;

/// One island's life at one round: what names an offer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct OfferId {
    /// Index of the round that the offer is for.
    pub round: u64,
    /// Name of the island.
    pub island: String,
    /// Life of the island.
    pub incarnation: u64,
}

/// Makes the keys of one run.
#[derive(Debug, Clone)]
pub struct Keys {
    run: String,
}

/// Whether `name` may stand in a key as the name of an island or a syncer: 1 to 64 lower-case letters, digits and dashes.
pub fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// First parts of keys that belong to no run.
const RESERVED: [&str; 2] = ["policy", "doctor"];

/// Whether `name` may be the name of a run: one that may stand in a key and is the first part of no other kind of key.
pub fn is_run_name(name: &str) -> bool {
    is_name(name) && !RESERVED.contains(&name)
}

/// Whether `text` is a SHA-256 as 64 lower-case hexadecimal digits.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn number(text: &str, width: usize) -> Option<u64> {
    (text.len() == width && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// `policy/<sha256>.wasm`: a component, content-addressed, shared by all runs of a bucket.
///
/// # Panics
/// `hash` is not 64 lower-case hexadecimal digits.
pub fn policy(hash: &str) -> Path {
    assert!(is_hash(hash), "a policy is named by its SHA-256");
    Path::from(format!("policy/{hash}.wasm"))
}

/// `policy/<sha256>.json`: the card of the admission of that component.
///
/// # Panics
/// As [`policy`].
pub fn policy_card(hash: &str) -> Path {
    assert!(is_hash(hash), "a policy is named by its SHA-256");
    Path::from(format!("policy/{hash}.json"))
}

/// The folder of all components and their cards.
pub fn policies() -> Path {
    Path::from("policy")
}

/// The hash in a key that [`policy`] makes; none for every other key.
pub fn parse_policy(key: &Path) -> Option<&str> {
    let hash = key.as_ref().strip_prefix("policy/")?.strip_suffix(".wasm")?;
    is_hash(hash).then_some(hash)
}

/// The folder of all examinations of the store; nothing in it outlives its examination on purpose.
pub fn doctors() -> Path {
    Path::from("doctor")
}

/// Makes the keys of one examination of a store, all below `doctor/<nonce>`.
#[derive(Debug, Clone)]
pub struct DoctorKeys {
    folder: String,
}

impl DoctorKeys {
    /// Keys of the examination with this nonce.
    pub fn new(nonce: &str) -> DoctorKeys {
        DoctorKeys { folder: format!("{}/{nonce}", doctors()) }
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> Path {
        Path::from(format!("{}/{rest}", self.folder))
    }

    /// The folder of everything that the examination writes.
    pub fn folder(&self) -> Path {
        Path::from(self.folder.as_str())
    }

    /// A key that is written and read back.
    pub fn single(&self, name: &str) -> Path {
        self.key(format_args!("{name}.json"))
    }

    /// One of the keys that are numbered within a folder of their own.
    pub fn numbered(&self, folder: &str, n: u64) -> Path {
        self.key(format_args!("{folder}/{n:020}.json"))
    }

    /// The folder of numbered keys.
    pub fn numbers(&self, folder: &str) -> Path {
        self.key(format_args!("{folder}"))
    }
}

impl Keys {
    /// Keys of run `run`, whose name the spec has checked.
    ///
    /// # Panics
    /// `run` is not a valid name.
    pub fn new(run: &str) -> Keys {
        assert!(is_run_name(run), "the spec has checked the run's name");
        Keys { run: run.to_string() }
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> Path {
        Path::from(format!("{}/{rest}", self.run))
    }

    /// The run's record.
    pub fn run(&self) -> Path {
        self.key(format_args!("run.json"))
    }

    /// Log entry `seq`.
    pub fn log(&self, seq: u64) -> Path {
        self.key(format_args!("log/{seq:020}.json"))
    }

    /// The folder of all log entries.
    pub fn logs(&self) -> Path {
        self.key(format_args!("log"))
    }

    /// The state of the log after the entries before `seq`.
    pub fn state(&self, seq: u64) -> Path {
        self.key(format_args!("state/{seq:020}.json"))
    }

    /// The folder of log states.
    pub fn states(&self) -> Path {
        self.key(format_args!("state"))
    }

    /// The sequence number of a state's key.
    pub fn parse_state(&self, key: &Path) -> Option<u64> {
        number(key.filename()?.strip_suffix(".json")?, 20)
    }

    /// The version of fragment `p` that round `round` made, in f32.
    pub fn fragment(&self, p: usize, round: u64, hash: &str) -> Path {
        self.key(format_args!("fragment/{p:04}/{round:020}-{hash}.arrow"))
    }

    /// The outer optimiser's state beside that version.
    pub fn fragment_state(&self, p: usize, round: u64, hash: &str) -> Path {
        self.key(format_args!("fragment/{p:04}/{round:020}-{hash}.state.arrow"))
    }

    /// The encoded step to that version from the one before.
    pub fn fragment_step(&self, p: usize, round: u64, hash: &str) -> Path {
        self.key(format_args!("fragment/{p:04}/{round:020}-{hash}.step.arrow"))
    }

    /// The folder of fragment `p`.
    pub fn fragment_folder(&self, p: usize) -> Path {
        self.key(format_args!("fragment/{p:04}"))
    }

    /// The round of a key below a fragment's folder.
    pub fn parse_fragment_round(&self, key: &Path) -> Option<u64> {
        let name = key.filename()?;
        let (round, rest) = name.split_once('-')?;
        let hash = rest.strip_suffix(".arrow")?;
        let hash = hash.strip_suffix(".state").or(hash.strip_suffix(".step")).unwrap_or(hash);
        is_hash(hash).then(|| number(round, 20)).flatten()
    }

    /// An offer.
    pub fn offer(&self, id: &OfferId) -> Path {
        self.key(format_args!("offer/{:020}/{}.{:06}.arrow", id.round, id.island, id.incarnation))
    }

    /// The folder of the offers of a round.
    pub fn offers(&self, round: u64) -> Path {
        self.key(format_args!("offer/{round:020}"))
    }

    /// The folder of all offers.
    pub fn all_offers(&self) -> Path {
        self.key(format_args!("offer"))
    }

    /// What an offer's key says; none where the key is not one that [`Keys::offer`] makes.
    pub fn parse_offer(&self, key: &Path) -> Option<OfferId> {
        let text = key.as_ref().strip_prefix(self.run.as_str())?.strip_prefix("/offer/")?;
        let (round, name) = text.split_once('/')?;
        let (island, incarnation) = name.strip_suffix(".arrow")?.split_once('.')?;
        is_name(island).then_some(OfferId {
            round: number(round, 20)?,
            island: island.to_string(),
            incarnation: number(incarnation, 6)?,
        })
    }

    /// An island's heartbeat.
    pub fn card(&self, island: &str) -> Path {
        self.key(format_args!("island/{island}/card.json"))
    }

    /// The folder of all islands.
    pub fn islands(&self) -> Path {
        self.key(format_args!("island"))
    }

    /// The island of a key below the islands' folder.
    pub fn parse_island(&self, key: &Path) -> Option<String> {
        let text = key.as_ref().strip_prefix(self.run.as_str())?.strip_prefix("/island/")?;
        let name = text.split('/').next()?;
        is_name(name).then(|| name.to_string())
    }

    /// The claim of one life of an island.
    pub fn incarnation(&self, island: &str, n: u64) -> Path {
        self.key(format_args!("island/{island}/incarnation/{n:06}.json"))
    }

    /// The folder of an island's claims.
    pub fn incarnations(&self, island: &str) -> Path {
        self.key(format_args!("island/{island}/incarnation"))
    }

    /// The number of an incarnation's key.
    pub fn parse_incarnation(&self, key: &Path) -> Option<u64> {
        number(key.filename()?.strip_suffix(".json")?, 6)
    }

    /// An island's checkpoint.
    pub fn checkpoint(&self, island: &str, step: u64) -> Path {
        self.key(format_args!("island/{island}/checkpoint/{step:020}.arrow"))
    }

    /// The folder of an island's checkpoints.
    pub fn checkpoints(&self, island: &str) -> Path {
        self.key(format_args!("island/{island}/checkpoint"))
    }

    /// The step of a checkpoint's key.
    pub fn parse_checkpoint(&self, key: &Path) -> Option<u64> {
        number(key.filename()?.strip_suffix(".arrow")?, 20)
    }

    /// The beat of a syncer.
    pub fn syncer(&self, id: &str) -> Path {
        self.key(format_args!("syncer/{id}.json"))
    }

    /// The claim of a block of training data.
    pub fn block(&self, block: u64, attempt: u32) -> Path {
        self.key(format_args!("data/{block:08}.{attempt:03}.json"))
    }

    /// The folder of block claims.
    pub fn blocks(&self) -> Path {
        self.key(format_args!("data"))
    }

    /// The block and attempt of a claim's key.
    pub fn parse_block(&self, key: &Path) -> Option<(u64, u32)> {
        let (block, attempt) = key.filename()?.strip_suffix(".json")?.split_once('.')?;
        Some((number(block, 8)?, number(attempt, 3)? as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_say_what_they_were_made_from(round in 0u64..u64::MAX / 2, incarnation in 0u64..999_999, island in "[a-z0-9][a-z0-9-]{0,20}", block in 0u64..99_999_999, attempt in 0u32..999) {
            let keys = Keys::new("run-1");
            let id = OfferId { round, island: island.clone(), incarnation };
            prop_assert_eq!(keys.parse_offer(&keys.offer(&id)), Some(id));
            prop_assert_eq!(keys.parse_block(&keys.block(block, attempt)), Some((block, attempt)));
            prop_assert_eq!(keys.parse_incarnation(&keys.incarnation(&island, incarnation)), Some(incarnation));
            prop_assert_eq!(keys.parse_checkpoint(&keys.checkpoint(&island, round)), Some(round));
            prop_assert_eq!(keys.parse_state(&keys.state(round)), Some(round));
            prop_assert_eq!(keys.parse_island(&keys.card(&island)), Some(island));
            let hash = "ab".repeat(32);
            prop_assert_eq!(keys.parse_fragment_round(&keys.fragment(3, round, &hash)), Some(round));
            prop_assert_eq!(keys.parse_fragment_round(&keys.fragment_state(3, round, &hash)), Some(round));
            prop_assert_eq!(keys.parse_fragment_round(&keys.fragment_step(3, round, &hash)), Some(round));
            let (component, card) = (policy(&hash), policy_card(&hash));
            prop_assert_eq!(parse_policy(&component), Some(hash.as_str()));
            prop_assert_eq!(parse_policy(&card), None);
        }

        #[test]
        fn a_strange_key_is_never_an_offer(text in "\\PC{0,60}") {
            let keys = Keys::new("run-1");
            if let Some(id) = keys.parse_offer(&Path::from(format!("run-1/offer/{text}"))) {
                prop_assert_eq!(keys.offer(&id), Path::from(format!("run-1/offer/{text}")));
            }
        }
    }

    #[test]
    fn an_examination_writes_below_a_name_that_no_run_can_have() {
        let keys = DoctorKeys::new("ab12");
        for key in [keys.folder(), keys.single("card"), keys.numbered("race", 3), keys.numbers("race")] {
            assert_eq!(key.parts().next(), doctors().parts().next(), "{key}");
            assert!(key.prefix_matches(&keys.folder()), "{key}");
        }
        assert!(!is_run_name(doctors().as_ref()) && is_name(doctors().as_ref()));
    }

    #[test]
    fn numbers_sort_as_text() {
        let keys = Keys::new("r");
        assert!(keys.log(9).as_ref() < keys.log(10).as_ref());
        assert!(keys.checkpoint("a", 99).as_ref() < keys.checkpoint("a", 100).as_ref());
    }
}

//! The policies of a bucket, which all its runs share: components, each under the hash of its bytes, and beside each the card of its admission.
//!
//! A card is written after its component, and only for one that was admitted; so a crash leaves a component without a card, which counts as not
//! admitted, and never a card for bytes that are not there. Both are put, not created: whoever writes a component writes the same bytes, and of two
//! who admit one component at once the later card stays. A card says what was found where it was admitted; a run takes nothing on trust for it, since
//! every answer of a policy is checked when it is used.

use super::CONFIG_BYTES_MAX;
use super::key;
use super::run::{list, read};
use super::shelf::unfit;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::nonce::sha256;
use crate::policy::{self, CARD_FORMAT, Card, Hash, Runtime};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use std::sync::Arc;

/// The largest component that is read; what may be uploaded is bounded by the limits of the one who admits it.
const COMPONENT_BYTES_MAX: u64 = 64 << 20;
/// The largest card that is read or written.
const CARD_BYTES_MAX: u64 = 1 << 20;
/// Configurations, of all roles together, that a card keeps; the oldest go first.
const ROLE_CARDS_MAX: usize = 32;
/// Cards that are read at the same time.
const READS_AT_ONCE: usize = 8;

/// The policies of one bucket.
#[derive(Debug, Clone)]
pub struct Policies {
    store: Arc<dyn ObjectStore>,
}

/// One policy of a bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Hash of the component.
    pub policy: Hash,
    /// Bytes of the component.
    pub component_bytes: u64,
    /// What its admission found; none where it was not admitted.
    pub card: Option<Card>,
}

/// What became of a component that was to be stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Pushed {
    /// It was admitted and is stored.
    New(Card),
    /// It was there, admitted under this configuration, and nothing was done; or there without a card that says so, and has one now.
    Known(Card),
    /// It breaks its contract, as this card says, and is not stored.
    Refused(Card),
}

/// A configuration as it is stored and handed to a policy: JSON of one object, without blanks, fields in order; empty for none.
///
/// # Errors
/// Invalid: it is not the JSON of an object, or larger than [`CONFIG_BYTES_MAX`].
pub fn canonical(config: &str) -> Result<String> {
    let too_long = |found: usize| {
        Error::invalid(format!("the configuration: expected at most {CONFIG_BYTES_MAX} bytes, found {found}"))
    };
    if config.len() > CONFIG_BYTES_MAX {
        return Err(too_long(config.len()));
    }
    if config.trim().is_empty() {
        return Ok(String::new());
    }
    let wrong = "the configuration: expected a JSON object such as {\"eta\": 0.7}";
    match serde_json::from_str(config) {
        Ok(serde_json::Value::Object(fields)) if fields.is_empty() => Ok(String::new()),
        Ok(serde_json::Value::Object(fields)) => {
            // It can be longer than what was given: 1e15 has 18 characters as it is stored.
            let stored = serde_json::Value::Object(fields).to_string();
            if stored.len() > CONFIG_BYTES_MAX { Err(too_long(stored.len())) } else { Ok(stored) }
        }
        Ok(_) => Err(Error::invalid(format!("{wrong}, found another kind of value"))),
        Err(error) => Err(Error::invalid(format!("{wrong}, found what is no JSON")).because(error)),
    }
}

impl Policies {
    /// The policies in `store`.
    pub fn new(store: Arc<dyn ObjectStore>) -> Policies {
        Policies { store }
    }

    async fn write(&self, key: &Path, body: Bytes) -> Result<()> {
        let written = self.store.put(key, body.into()).await;
        written.map(|_| ()).map_err(|e| Error::unavailable(format!("{key}: cannot be written")).because(e))
    }

    /// Stores a component under its hash, and returns that. Bytes that are not what their name promises are written anew.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn put(&self, wasm: &[u8]) -> Result<String> {
        let hash = sha256(wasm);
        if self.component_if_whole(&hash).await?.is_none() {
            self.write(&key::policy(&hash), Bytes::copy_from_slice(wasm)).await?;
        }
        Ok(hash)
    }

    /// The bytes that this hash names; none if they are absent or others.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn component_if_whole(&self, hash: &str) -> Result<Option<Bytes>> {
        match read(&*self.store, &key::policy(hash), COMPONENT_BYTES_MAX).await {
            Ok(found) => Ok(found.filter(|bytes| sha256(bytes) == hash)),
            Err(error) if error.kind() == Kind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The component with this hash.
    ///
    /// # Errors
    /// Unavailable; corrupt if it is absent (whoever names a policy has put it there before), or its bytes are not those that the hash names.
    pub async fn component(&self, hash: &str) -> Result<Bytes> {
        if hash.parse::<Hash>().is_err() {
            return Err(Error::corrupt(format!(
                "expected the SHA-256 of a policy as 64 hexadecimal digits, found `{}`",
                hash.escape_debug()
            )));
        }
        let key = key::policy(hash);
        let bytes = read(&*self.store, &key, COMPONENT_BYTES_MAX)
            .await?
            .ok_or_else(|| Error::corrupt(format!("{key}: this policy is not in the bucket")))?;
        let found = sha256(&bytes);
        if found != hash {
            return Err(Error::corrupt(format!(
                "{key}: expected these bytes to have the hash in their name, found {found}"
            )));
        }
        Ok(bytes)
    }

    /// What the admission of a component found; none if it has no card, or none that can be read and is its own.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn card(&self, policy: Hash) -> Result<Option<Card>> {
        let bytes = match read(&*self.store, &key::policy_card(&policy.to_string()), CARD_BYTES_MAX).await {
            Err(error) if error.kind() == Kind::Corrupt => None,
            found => found?,
        };
        let card = bytes.and_then(|bytes| serde_json::from_slice::<Card>(&bytes).ok());
        Ok(card.filter(|card| card.format == CARD_FORMAT && card.policy == policy && card.is_admitted()))
    }

    /// Hash and bytes of every component that is there, by hash.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn hashes(&self) -> Result<Vec<(Hash, u64)>> {
        let listed = list(&*self.store, &key::policies()).await?;
        let parsed = listed.iter().filter_map(|(key, bytes)| Some((key::parse_policy(key)?.parse().ok()?, *bytes)));
        let mut hashes: Vec<(Hash, u64)> = parsed.collect();
        hashes.sort_unstable();
        Ok(hashes)
    }

    /// The policies after `after` (by hash; from the first where there is none), at most `count` of them, each with its card.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn list(&self, after: Option<Hash>, count: usize) -> Result<Vec<Listed>> {
        let wanted = self.hashes().await?.into_iter().filter(|(hash, _)| after.is_none_or(|after| *hash > after));
        let with_card = |(policy, component_bytes)| async move {
            Ok(Listed { policy, component_bytes, card: self.card(policy).await? })
        };
        futures::stream::iter(wanted.take(count)).map(with_card).buffered(READS_AT_ONCE).try_collect().await
    }

    /// The policy with this hash; none if it is not there.
    ///
    /// # Errors
    /// Unavailable.
    pub async fn find(&self, policy: Hash) -> Result<Option<Listed>> {
        let key = key::policy(&policy.to_string());
        match self.store.head(&key).await {
            Ok(found) => Ok(Some(Listed { policy, component_bytes: found.size, card: self.card(policy).await? })),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::unavailable(format!("{key}: cannot be looked at")).because(error)),
        }
    }

    /// Admits a component under `config` (see [`canonical`]) and stores it with its card. What is there already, admitted under this configuration, is not
    /// examined again. `runtime` should keep no compiled code, so that the card says what compiling takes.
    ///
    /// After: the component is stored and has a card that admits each of its roles under `config`, or nothing has changed. A crash leaves at
    /// worst a component without a card.
    ///
    /// # Errors
    /// Invalid: it is no component that this host runs, or the configuration is none. Unavailable: the bucket does not answer, or this machine cannot
    /// examine it.
    pub async fn push(&self, runtime: &Runtime, wasm: Bytes, config: &str) -> Result<Pushed> {
        let config = canonical(config)?;
        let policy = Hash::of(&wasm);
        let there = self.component_if_whole(&policy.to_string()).await?.is_some();
        let before = if there { self.card(policy).await? } else { None };
        if let Some(card) = &before
            && covers(card, &config)
        {
            return Ok(Pushed::Known(card.clone()));
        }
        let (engine, bytes, examined) = (runtime.clone(), wasm.clone(), config.clone());
        let examination = tokio::task::spawn_blocking(move || {
            let begun = clock::now();
            policy::examine(&engine, &bytes, &examined, &|| begun.elapsed())
        });
        let card = examination.await.map_err(|e| Error::bug("an examination panicked").because(e))?;
        let mut card = card.map_err(|e| {
            unfit(if e.is_of_host() { "the policy cannot be examined here" } else { "the policy is refused" }, e)
        })?;
        if !card.is_admitted() {
            return Ok(Pushed::Refused(card));
        }
        let mut roles = before.map_or(Vec::new(), |before| before.roles);
        roles.retain(|role| role.config != config);
        roles.append(&mut card.roles);
        roles.drain(..roles.len().saturating_sub(ROLE_CARDS_MAX));
        card.roles = roles;
        let json = fitted(&mut card, &config);
        self.put(&wasm).await?;
        self.write(&key::policy_card(&policy.to_string()), json.into()).await?;
        Ok(if there { Pushed::Known(card) } else { Pushed::New(card) })
    }
}

/// A card as it is written: no larger than one that is read. The oldest configurations go first, never `config`.
fn fitted(card: &mut Card, config: &str) -> Vec<u8> {
    loop {
        let json = serde_json::to_vec(&card).expect("a card serialises");
        let older = card.roles.iter().position(|role| role.config != config);
        match older.filter(|_| json.len() as u64 > CARD_BYTES_MAX) {
            Some(older) => card.roles.remove(older),
            None => return json,
        };
    }
}

/// Whether a card admits every role that it knows under `config`.
fn covers(card: &Card, config: &str) -> bool {
    !card.roles.is_empty() && card.roles.iter().all(|known| card.admits(known.role, config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_one_form_and_what_is_no_object_is_refused() {
        for (given, expected) in [
            ("", ""),
            (" {} ", ""),
            ("{\"b\": 1, \"a\": [ 0.50 ]}", "{\"a\":[0.5],\"b\":1}"),
            ("{\"é\":\"\\n\"}", "{\"é\":\"\\n\"}"),
        ] {
            assert_eq!(canonical(given).unwrap(), expected);
        }
        for wrong in ["1", "[]", "null", "{", "\"a\"", &format!("{{\"a\":\"{}\"}}", "x".repeat(CONFIG_BYTES_MAX))] {
            let error = canonical(wrong).unwrap_err();
            assert!(error.to_string().contains("expected"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_card_is_written_no_larger_than_it_is_read() {
        let role = |config: String| crate::policy::RoleCard {
            role: crate::policy::Role::Merge,
            config,
            passed: Vec::new(),
            refused: None,
            facts: Default::default(),
        };
        let configs: Vec<String> = (0..30).map(|i| format!("{{\"a\":\"{i:060000}\"}}")).collect();
        let mut card = Card {
            format: CARD_FORMAT,
            policy: Hash::of(b"x"),
            component_bytes: 1,
            compile_ms: 1.0,
            roles: configs.iter().cloned().map(role).collect(),
            tuned: Vec::new(),
        };
        let json = fitted(&mut card, &configs[29]);
        assert!(json.len() as u64 <= CARD_BYTES_MAX && card.roles.len() > 10, "{}", json.len());
        assert_eq!(card.roles.last().map(|role| &role.config), Some(&configs[29]));
        let longer = format!("{{\"a\":[{}1e15]}}", "1e15,".repeat(10_000));
        assert!(longer.len() < CONFIG_BYTES_MAX && canonical(&longer).is_err(), "it would be stored longer");
    }
}

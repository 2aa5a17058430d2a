//! Which outer optimiser a merge rule uses: the configuration's field `outer`, so that a rule need not care.

use super::{Adam, Delayed, Nesterov};
use crate::bindings::Round;
use crate::config::Config;

/// The optimisers that `outer` can name, and the fields that each takes.
const KNOWN: [(&str, &[&str]); 4] = [
    ("nesterov", &["eta", "momentum", "warmup", "cooldown"]),
    ("sgd", Nesterov::PLAIN_FIELDS),
    ("adam", &["eta", "beta1", "beta2", "epsilon", "cooldown"]),
    ("delayed-nesterov", &["eta", "momentum", "warmup", "period", "spread", "cooldown"]),
];

/// The outer optimiser of a round. `outer` names it: `nesterov` (the default, see [`Nesterov`]), `sgd` (Θ ← Θ − η·Δ), `adam` (see
/// [`Adam`]) or `delayed-nesterov` (see [`Delayed`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outer {
    /// SGD with Nesterov momentum, or plain SGD where the momentum is 0.
    Nesterov(Nesterov),
    /// Adam.
    Adam(Adam),
    /// SGD with Nesterov momentum that is renewed every few merges.
    Delayed(Delayed),
}

impl Outer {
    /// The fields that [`configured`](Outer::configured) reads, for [`Config::parse`].
    pub const FIELDS: &'static [&'static str] =
        &["outer", "eta", "momentum", "warmup", "cooldown", "beta1", "beta2", "epsilon", "period", "spread"];

    /// Reads `outer` and the fields of the optimiser that it names. `cooldown` is the same for all.
    ///
    /// `memo` is what [`memo`](Outer::memo) answered in the fragment's last round, empty at first and after a switch.
    ///
    /// Errors: another name; a field of another optimiser; a value out of range.
    pub fn configured(config: &Config, round: &Round, memo: &[u8]) -> Result<Outer, String> {
        let name = config.text("outer", "nesterov")?;
        let Some((_, fields)) = KNOWN.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = KNOWN.iter().map(|(known, _)| *known).collect();
            return Err(["configuration: unknown outer \"", name, "\"; known are ", &known.join(", ")].concat());
        };
        for field in Outer::FIELDS {
            if *field != "outer" && config.has(field) && !fields.contains(field) {
                let taken = fields.join(", ");
                return Err(
                    ["configuration: outer \"", name, "\" has no field \"", field, "\"; it takes ", &taken].concat()
                );
            }
        }
        match name {
            "sgd" => Nesterov::plain(config, 0.7, round).map(Outer::Nesterov),
            "adam" => Adam::configured(config, round, memo).map(Outer::Adam),
            "delayed-nesterov" => Delayed::configured(config, round).map(Outer::Delayed),
            _ => Nesterov::configured(config, round).map(Outer::Nesterov),
        }
    }

    /// Vectors of state.
    pub fn state_slots(&self) -> u32 {
        match self {
            Outer::Nesterov(outer) => outer.state_slots(),
            Outer::Adam(_) | Outer::Delayed(_) => 2,
        }
    }

    /// What the rule's own memo is to be, or to begin with.
    pub fn memo(&self) -> Vec<u8> {
        match self {
            Outer::Adam(outer) => outer.memo(),
            Outer::Nesterov(_) | Outer::Delayed(_) => Vec::new(),
        }
    }

    /// Descends along Δ = Σₘ coefficients\[m\] · values\[m\]: merge and step in one sweep over the chunk. `state` has
    /// [`state_slots`](Outer::state_slots) vectors; all lists are as long as `parameters`.
    pub fn descend(&self, coefficients: &[f32], values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) {
        match self {
            Outer::Nesterov(outer) => outer.descend(coefficients, values, state, parameters),
            Outer::Adam(outer) => outer.descend(coefficients, values, state, parameters),
            Outer::Delayed(outer) => outer.descend(coefficients, values, state, parameters),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outer(json: &str) -> Result<Outer, String> {
        let round = Round { index: 0, fragment: 0, version: 3, tokens_merged: 0, token_budget: 0 };
        Outer::configured(&Config::parse(json.as_bytes(), Outer::FIELDS).expect(json), &round, b"")
    }

    #[test]
    fn nesterov_is_the_default_and_each_has_its_state() {
        assert_eq!(outer(""), Ok(Outer::Nesterov(Nesterov::new(0.7, 0.9, 10.0, 3))));
        assert_eq!(outer(r#"{"outer":"nesterov"}"#), outer(""));
        for (name, slots) in [("nesterov", 1), ("sgd", 0), ("adam", 2), ("delayed-nesterov", 2)] {
            let outer = outer(&format!(r#"{{"outer":"{name}"}}"#)).expect(name);
            assert_eq!(outer.state_slots(), slots, "{name}");
        }
    }

    #[test]
    fn sgd_goes_straight_down() {
        let outer = outer(r#"{"outer":"sgd","eta":0.5}"#).expect("valid");
        let mut parameters = vec![1.0; 33];
        outer.descend(&[1.0], &[vec![2.0; 33]], &mut [], &mut parameters);
        assert_eq!(parameters, [0.0; 33]);
    }

    #[test]
    fn unknown_names_and_the_fields_of_others_are_refused_by_name() {
        for (json, said) in [
            (r#"{"outer":"lion"}"#, "unknown outer \"lion\"; known are nesterov, sgd, adam, delayed-nesterov"),
            (r#"{"outer":"sgd","momentum":0.9}"#, "outer \"sgd\" has no field \"momentum\"; it takes eta, cooldown"),
            (r#"{"beta1":0.9}"#, "outer \"nesterov\" has no field \"beta1\""),
            (r#"{"outer":"adam","period":2}"#, "outer \"adam\" has no field \"period\""),
            (r#"{"outer":"delayed-nesterov","period":1.5}"#, "field \"period\" must be a whole number"),
        ] {
            let error = outer(json).expect_err(json);
            assert!(error.contains(said), "{error}");
        }
    }
}

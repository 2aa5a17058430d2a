//! The three roles as Rust traits, and the sessions that carry them across the component boundary.

use core::cell::RefCell;

use crate::bindings::codec::exports::tombolo::policy::codec as codec_exports;
use crate::bindings::merge::exports::tombolo::policy::merge as merge_exports;
use crate::bindings::{At, Contribution, Decision, Plan, Round, Stepped, Tensor, Traits, View};

/// How values travel. Answers must depend on nothing but the configuration, the tensors and the call's own arguments.
pub trait Codec: Sized + 'static {
    /// Sets the codec up from its configuration (JSON, empty for the defaults) and the tensors it will see.
    fn open(config: &[u8], tensors: Vec<Tensor>) -> Result<Self, String>;

    /// What this codec promises.
    fn traits(&self) -> Traits;

    /// Encodes a chunk of finite values.
    fn encode(&self, at: At, values: &[f32]) -> Result<Vec<u8>, String>;

    /// Decodes a chunk of `elements` values; an error where `encode` cannot have written the bytes.
    fn decode(&self, at: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>, String>;
}

/// All that a merge rule is told when its round begins.
pub struct Opening {
    /// Configuration: JSON, empty for the defaults.
    pub config: Vec<u8>,
    /// Which round this is.
    pub round: Round,
    /// The fragment's tensors.
    pub tensors: Vec<Tensor>,
    /// Facts about the contributions, in the order in which their values will come.
    pub contributions: Vec<Contribution>,
    /// What [`Merge::memo`] answered in this fragment's last round; empty at first.
    pub memo: Vec<u8>,
}

/// Weights, merge and outer optimiser of one fragment in one round.
pub trait Merge: Sized + 'static {
    /// Sets a round up.
    fn open(opening: Opening) -> Result<Self, String>;

    /// Weights, passes and state slots of this round.
    fn plan(&self) -> Plan;

    /// What a pass must remember of a chunk. `values` has one list per contribution.
    fn observe(&self, pass: u32, at: At, values: &[Vec<f32>]) -> Result<Vec<u8>, String> {
        let _ = (pass, at, values);
        Err("this rule observes nothing".into())
    }

    /// Ends a pass with what [`observe`](Merge::observe) answered, in chunk order.
    fn observed(&mut self, pass: u32, blobs: &[Vec<u8>]) -> Result<(), String> {
        let _ = (pass, blobs);
        Err("this rule observes nothing".into())
    }

    /// Moves one chunk in place. `values` are pseudo-gradients (base − trained) to descend along, one list per contribution;
    /// `state` has the planned slots, zero at first.
    fn step(&self, at: At, values: &[Vec<f32>], state: &mut [Vec<f32>], parameters: &mut [f32]) -> Result<(), String>;

    /// What this fragment's next round should know; may depend on `open` and `observed` only.
    fn memo(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// When a round is closed.
pub trait Pace {
    /// Decides on one view of a round that has its quorum.
    fn decide(config: &[u8], view: &View) -> Result<Decision, String>;
}

/// Carries a [`Codec`] across the component boundary.
pub struct CodecSession<C>(C);

impl<C: Codec> codec_exports::GuestSession for CodecSession<C> {
    fn open(config: Vec<u8>, tensors: Vec<Tensor>) -> Result<codec_exports::Session, String> {
        Ok(codec_exports::Session::new(CodecSession(C::open(&config, tensors)?)))
    }

    fn traits(&self) -> Traits {
        self.0.traits()
    }

    fn encode(&self, at: At, values: Vec<f32>) -> Result<Vec<u8>, String> {
        self.0.encode(at, &values)
    }

    fn decode(&self, at: At, bytes: Vec<u8>, elements: u32) -> Result<Vec<f32>, String> {
        self.0.decode(at, &bytes, elements as usize)
    }
}

/// Carries a [`Merge`] across the component boundary. The cell is for `observed`; a component runs on one thread and is not re-entered.
pub struct MergeSession<R>(RefCell<R>);

impl<R: Merge> merge_exports::GuestSession for MergeSession<R> {
    fn open(
        config: Vec<u8>,
        round: Round,
        tensors: Vec<Tensor>,
        contributions: Vec<Contribution>,
        memo: Vec<u8>,
    ) -> Result<merge_exports::Session, String> {
        let rule = R::open(Opening { config, round, tensors, contributions, memo })?;
        Ok(merge_exports::Session::new(MergeSession(RefCell::new(rule))))
    }

    fn plan(&self) -> Result<Plan, String> {
        Ok(self.0.borrow().plan())
    }

    fn observe(&self, pass: u32, at: At, values: Vec<Vec<f32>>) -> Result<Vec<u8>, String> {
        self.0.borrow().observe(pass, at, &values)
    }

    fn observed(&self, pass: u32, blobs: Vec<Vec<u8>>) -> Result<(), String> {
        self.0.borrow_mut().observed(pass, &blobs)
    }

    fn step(
        &self,
        at: At,
        values: Vec<Vec<f32>>,
        mut state: Vec<Vec<f32>>,
        mut parameters: Vec<f32>,
    ) -> Result<Stepped, String> {
        self.0.borrow().step(at, &values, &mut state, &mut parameters)?;
        Ok(Stepped { parameters, state })
    }

    fn close(&self) -> Result<Vec<u8>, String> {
        Ok(self.0.borrow().memo())
    }
}

//! A codec at work: values of a chunk to bytes and back.

use std::fmt;

use tombolo_engine::first_not_finite;
use wasmtime::component::ResourceAny;

use super::bindings::{codec::CodecPolicy, types};
use super::instance::{Instance, nonsense};
use super::tensor::check_chunk;
use super::{At, Error, Policy, Result, Tensor};

/// Bytes that a value may be encoded in.
pub const BYTES_PER_VALUE_MAX: usize = 8;
/// Bytes that a chunk may take beside those of its values.
const CHUNK_BYTES_EXTRA: usize = 64;

/// What a codec promises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodecTraits {
    /// Mean bits a value takes in a full chunk, headers included.
    pub bits_per_value: f32,
    /// Share of the residual that is carried into the next offer; none: no error feedback.
    pub feedback_decay: Option<f32>,
    /// Bound on a value's error, as a share of the largest magnitude in its block. Errors below 2^-100 never count.
    pub error_max: f32,
    /// Values of a block, counted from the start of the chunk.
    pub block: u32,
}

/// A codec set up for one list of tensors. An instance that failed is replaced on the next call.
pub struct Codec {
    policy: Policy,
    config: Vec<u8>,
    tensors: Vec<Tensor>,
    traits: CodecTraits,
    running: Option<Running>,
}

struct Running {
    instance: Instance<CodecPolicy>,
    session: ResourceAny,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("policy", &self.policy).field("traits", &self.traits).finish_non_exhaustive()
    }
}

impl Codec {
    /// Sets a codec up with its configuration (JSON; empty for the defaults).
    ///
    /// Errors: the policy is no codec, refuses the configuration, or promises what is out of range.
    pub fn open(policy: &Policy, config: &[u8], tensors: &[Tensor]) -> Result<Codec> {
        let mut running = Running::start(policy, config, tensors)?;
        let traits = running.traits(policy)?;
        let (config, tensors) = (config.to_vec(), tensors.to_vec());
        Ok(Codec { policy: policy.clone(), config, tensors, traits, running: Some(running) })
    }

    /// What the codec promises.
    pub fn traits(&self) -> CodecTraits {
        self.traits
    }

    /// Fuel that the calls of the running instance took so far; 0 where it has just been thrown away.
    pub(super) fn fuel(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.instance.fuel())
    }

    /// The policy behind it.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Encodes the chunk at `at`.
    ///
    /// Errors: [`Error::Input`] where `values` is no chunk or not finite; a failure of the policy, more than 8 bytes a value included.
    pub fn encode(&mut self, at: At, values: &[f32]) -> Result<Vec<u8>> {
        check_chunk(&self.tensors, at, values.len())?;
        if let Some(index) = first_not_finite(values) {
            return Err(Error::Input {
                what: "values to encode",
                expected: "finite values".into(),
                found: format!("{} at {index} of the chunk at {at:?}", values[index]),
            });
        }
        let limit = values.len() * BYTES_PER_VALUE_MAX + CHUNK_BYTES_EXTRA;
        let bytes = self.call(|running| {
            let session = running.session;
            running.instance.call("encode", values.len() as u64, limit, |store, codec| {
                codec.tombolo_policy_codec().session().call_encode(store, session, at.into(), values)
            })
        })?;
        if bytes.len() > limit {
            return Err(nonsense(&self.policy, "encode", "bytes of a chunk", format!("at most {limit}"), bytes.len()));
        }
        Ok(bytes)
    }

    /// Decodes what `encode` made, here or elsewhere, of the `elements` values at `at`.
    ///
    /// Errors: [`Error::Input`] where that is no chunk; [`Error::Refused`] where the codec cannot have written `bytes`; a failure of the policy, another number
    /// of values and values that are not finite included.
    pub fn decode(&mut self, at: At, bytes: &[u8], elements: usize) -> Result<Vec<f32>> {
        check_chunk(&self.tensors, at, elements)?;
        let limit = elements * BYTES_PER_VALUE_MAX + CHUNK_BYTES_EXTRA;
        if bytes.len() > limit {
            return Err(Error::Input {
                what: "an encoded chunk",
                expected: format!("at most {limit} bytes"),
                found: bytes.len().to_string(),
            });
        }
        let values = self.call(|running| {
            let session = running.session;
            running.instance.call("decode", elements as u64, elements, |store, codec| {
                codec.tombolo_policy_codec().session().call_decode(store, session, at.into(), bytes, elements as u32)
            })
        })?;
        if values.len() != elements {
            return Err(nonsense(&self.policy, "decode", "number of values", elements, values.len()));
        }
        if let Some(index) = first_not_finite(&values) {
            return Err(nonsense(&self.policy, "decode", format!("value {index}"), "a finite number", values[index]));
        }
        Ok(values)
    }

    /// Runs `f` on an instance, which is kept unless it failed otherwise than by saying no.
    fn call<T>(&mut self, f: impl FnOnce(&mut Running) -> Result<T>) -> Result<T> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start(&self.policy, &self.config, &self.tensors)?,
        };
        let answer = f(&mut running);
        if matches!(answer, Ok(_) | Err(Error::Refused { .. })) {
            self.running = Some(running);
        }
        answer
    }
}

impl Running {
    fn start(policy: &Policy, config: &[u8], tensors: &[Tensor]) -> Result<Running> {
        let pre = policy.codec()?;
        let mut instance = Instance::new(policy, |store| pre.instantiate(store))?;
        let listed: Vec<types::Tensor> = tensors.iter().map(types::Tensor::from).collect();
        let values = config.len() + tensors.len();
        let session = instance.call("codec open", values as u64, 0, |store, codec| {
            codec.tombolo_policy_codec().session().call_open(store, config, &listed)
        })?;
        Ok(Running { instance, session })
    }

    fn traits(&mut self, policy: &Policy) -> Result<CodecTraits> {
        let session = self.session;
        let traits = self.instance.call("traits", 0, 0, |store, codec| {
            codec.tombolo_policy_codec().session().call_traits(store, session).map(Ok)
        })?;
        let check = |what: &str, value: f32, good: bool, expected: &str| {
            if good { Ok(()) } else { Err(nonsense(policy, "traits", what, expected, value)) }
        };
        let bits = traits.bits_per_value;
        check("bits per value", bits, bits > 0.0 && bits <= 64.0, "above 0 and at most 64")?;
        let error = traits.error_max;
        check("greatest error", error, (0.0..=1.0).contains(&error), "between 0 and 1")?;
        let decay = traits.feedback_decay.unwrap_or(0.0);
        check("decay of the feedback", decay, (0.0..=1.0).contains(&decay), "between 0 and 1")?;
        check("values of a block", traits.block as f32, traits.block > 0, "at least 1")?;
        Ok(CodecTraits {
            bits_per_value: bits,
            feedback_decay: traits.feedback_decay,
            error_max: error,
            block: traits.block,
        })
    }
}

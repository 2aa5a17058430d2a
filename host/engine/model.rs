//! A model: its shape, its layout and the arena of its parameters.

use crate::random::Random;
use crate::{Error, Layout, ModelConfig, Result, TensorKind};

/// A model in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its shape.
    pub config: ModelConfig,
    /// Where its tensors lie.
    pub layout: Layout,
    /// The arena, [`Layout::elements`] values.
    pub parameters: Vec<f32>,
}

impl Model {
    /// A fresh model: matrices, embedding and head drawn with mean 0 and standard deviation `initializer_range`,
    /// vectors 1. The same seed gives the same bits on every machine; a tensor's values depend on the seed, its place
    /// in the layout and its size only.
    ///
    /// # Errors
    /// [`Error::Config`] lists every problem of an impossible shape.
    pub fn init(config: &ModelConfig, seed: u64) -> Result<Model> {
        config.check()?;
        let layout = Layout::of(config);
        let mut parameters = vec![1.0; layout.elements()];
        for (stream, tensor) in layout.tensors.iter().enumerate() {
            if tensor.kind != TensorKind::Vector {
                let mut random = Random::new(seed, stream as u64);
                for value in &mut parameters[tensor.range()] {
                    *value = config.initializer_range * random.normal();
                }
            }
        }
        Ok(Model { config: config.clone(), layout, parameters })
    }

    /// Whether shape, layout and arena belong together; their fields are public, so users may have changed them.
    pub(crate) fn check(&self) -> Result<()> {
        self.config.check()?;
        if self.layout != Layout::of(&self.config) {
            return Err(Error::Argument {
                what: "model.layout",
                expected: "the layout of model.config".to_owned(),
                found: format!("another one, of {} tensors", self.layout.tensors.len()),
            });
        }
        if self.parameters.len() != self.layout.elements() {
            return Err(Error::Argument {
                what: "model.parameters",
                expected: format!("{} values", self.layout.elements()),
                found: self.parameters.len().to_string(),
            });
        }
        Ok(())
    }

    /// The values of the tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&[f32]> {
        self.layout.tensor(name).map(|tensor| &self.parameters[tensor.range()])
    }
}

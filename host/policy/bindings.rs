//! What wasmtime makes of `wit/policy.wit`. Private: the rest of the host sees the types of `policy`.

#![allow(missing_docs)]

pub(super) mod codec {
    wasmtime::component::bindgen!({ path: "wit", world: "codec-policy", require_store_data_send: true });
}

pub(super) mod merge {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "merge-policy",
        additional_derives: [PartialEq],
        with: { "tombolo:policy/types": super::codec::tombolo::policy::types },
        require_store_data_send: true,
    });
}

pub(super) mod pace {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "pace-policy",
        with: { "tombolo:policy/types": super::codec::tombolo::policy::types },
        require_store_data_send: true,
    });
}

pub(super) use codec::tombolo::policy::types;

use super::{At, Contribution, Tensor, TensorKind};

impl From<At> for types::At {
    fn from(at: At) -> types::At {
        types::At { tensor: at.tensor, offset: at.offset }
    }
}

impl From<&Tensor> for types::Tensor {
    fn from(tensor: &Tensor) -> types::Tensor {
        types::Tensor {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            elements: tensor.elements(),
            kind: match tensor.kind {
                TensorKind::Embedding => types::TensorKind::Embedding,
                TensorKind::Head => types::TensorKind::Head,
                TensorKind::Matrix => types::TensorKind::Matrix,
                TensorKind::Vector => types::TensorKind::Vector,
            },
        }
    }
}

impl From<&Contribution> for types::Contribution {
    fn from(contribution: &Contribution) -> types::Contribution {
        types::Contribution {
            island: contribution.island.clone(),
            tokens: contribution.tokens,
            steps: contribution.steps,
            staleness: contribution.staleness,
            norm: contribution.norm,
        }
    }
}

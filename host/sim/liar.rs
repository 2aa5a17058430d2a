//! An island that lies: it trains, beats and adopts like any other, but what it offers is spoilt on the way to the bucket. Its offers are real ones,
//! decoded, changed and encoded again with the run's codec, so that everything about them is in order but their values.

use super::World;
use crate::bucket::payload::{Chunk, Data, content_hash};
use crate::bucket::{Bucket, Keys, OfferId};
use crate::error::{Error, Result};
use crate::outer::{Fragments, norm};
use crate::policy::{At, Codec, Policy};
use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// How many times longer than the island's own update its noise is.
const NOISE_RATIO: f32 = 100.0;
/// The longest offer that is spoilt: longer ones go up in parts, and are refused here.
const OFFER_BYTES_MAX: u64 = 8 << 20;

/// What a liar offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// Noise without any direction, 100 times as long as its update.
    Noise,
    /// Its update with the opposite sign: away from where training leads.
    Flip,
    /// Bytes that are NaN in `f32` and `bf16`, and as a scale of the codecs that have them. No codec encodes NaN, so they are written without it.
    Nan,
}

impl Attack {
    /// All, by the names that they have on the command line.
    pub const KNOWN: [(&str, Attack); 3] = [("noise", Attack::Noise), ("flip", Attack::Flip), ("nan", Attack::Nan)];
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Attack::KNOWN.iter().find(|(_, attack)| attack == self).expect("all are known");
        f.write_str(name)
    }
}

/// A liar's way to the store: whatever it puts as an offer is spoilt, everything else passes.
pub struct Liar {
    store: Arc<dyn ObjectStore>,
    run: String,
    keys: Keys,
    fragments: Arc<Fragments>,
    codec: Policy,
    attack: Attack,
    random: Mutex<StdRng>,
}

impl Liar {
    /// The bucket of a world as a liar there writes to it; noise comes from `seed`.
    pub fn bucket(world: &World, attack: Attack, seed: u64) -> Bucket {
        let run = world.record.spec.run.clone();
        let liar = Liar {
            store: world.bucket.store().clone(),
            keys: world.bucket.keys().clone(),
            run: run.clone(),
            fragments: world.fragments.clone(),
            codec: world.codec.clone(),
            attack,
            random: Mutex::new(StdRng::seed_from_u64(seed)),
        };
        Bucket::new(Arc::new(liar), &run)
    }

    /// The bytes of this offer with other values in it.
    async fn spoil(&self, id: &OfferId, payload: PutPayload) -> Result<PutPayload> {
        let scratch = Bucket::new(Arc::new(InMemory::new()), &self.run);
        let key = self.keys.offer(id);
        let failed = |e| Error::bug(format!("{key}: cannot be spoilt")).because(e);
        scratch.store().put(&key, payload).await.map_err(failed)?;
        let offer = scratch.offer(id, OFFER_BYTES_MAX).await?;
        let (mut header, mut chunks) = (offer.header, offer.chunks);
        match self.attack {
            Attack::Nan => {
                for chunk in &mut chunks {
                    if let Data::Encoded(bytes) = &mut chunk.data {
                        bytes.fill(0xff);
                    }
                }
            }
            Attack::Flip | Attack::Noise => {
                let tensors = self.fragments.policy_tensors(header.fragment);
                let failed = |e: crate::policy::Error| Error::bug("the codec does not take what it made").because(e);
                let mut codec = Codec::open(&self.codec, header.codec_config.as_bytes(), &tensors).map_err(failed)?;
                for chunk in &mut chunks {
                    let Chunk { tensor, offset, elements, data, .. } = chunk;
                    let Data::Encoded(bytes) = data else { return Err(Error::bug("an offer's values are encoded")) };
                    let at = At { tensor: *tensor, offset: *offset };
                    let values = codec.decode(at, bytes, *elements as usize).map_err(failed)?;
                    *bytes = codec.encode(at, &self.lie(&values)).map_err(failed)?;
                }
            }
        }
        header.hash = content_hash(&chunks);
        scratch.put_offer(&header, chunks).await?;
        let spoilt = scratch.store().get(&key).await.map_err(failed)?;
        Ok(spoilt.bytes().await.map_err(failed)?.into())
    }

    /// What stands in the place of these values.
    fn lie(&self, values: &[f32]) -> Vec<f32> {
        if self.attack == Attack::Flip {
            return values.iter().map(|value| -value).collect();
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let noise: Vec<f32> = values.iter().map(|_| random.random_range(-1.0f32..1.0)).collect();
        let scale = NOISE_RATIO * norm(values) / norm(&noise).max(f32::MIN_POSITIVE);
        noise.into_iter().map(|value| value * scale).collect()
    }
}

impl fmt::Debug for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Liar({})", self.attack)
    }
}

impl fmt::Display for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a liar's way to {}", self.store)
    }
}

#[async_trait]
impl ObjectStore for Liar {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        let payload = match self.keys.parse_offer(location) {
            None => payload,
            Some(id) => self
                .spoil(&id, payload)
                .await
                .map_err(|e| object_store::Error::Generic { store: "liar", source: e.into() })?,
        };
        self.store.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        if self.keys.parse_offer(location).is_some() {
            let source = format!("an offer of more than {OFFER_BYTES_MAX} bytes cannot be spoilt").into();
            return Err(object_store::Error::Generic { store: "liar", source });
        }
        self.store.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.store.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

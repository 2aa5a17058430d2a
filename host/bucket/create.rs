//! The one primitive of the protocol: create-if-absent, decided by reading back.
//!
//! A conflict or a lost answer does not mean "I lost": S3 clients repeat a put whose answer was lost and are then told that the object
//! exists – their own. So every object that is created this way carries a nonce, and who wins is decided by what is stored: mine, another's,
//! or nothing.
//!
//! Before: nothing is known of the key. After: the key holds an object that was created once, and the caller knows whose. A crash at any
//! point leaves either no object or the whole object.

use crate::error::{Error, Result};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use std::time::Duration;

/// What a create-if-absent came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The key holds exactly the bytes given.
    Mine,
    /// The key holds these bytes, which somebody else wrote.
    Other(Bytes),
}

/// Puts that are tried before the store is called unavailable.
const TRIES_MAX: u32 = 6;

/// Creates `key` with `body` unless it exists, and says whose object is there. `body` must hold a nonce, so that no other writer can have
/// written the same bytes.
///
/// # Errors
/// Unavailable: after several tries it could not be found out what the key holds. The put may still have been applied.
pub async fn create(store: &dyn ObjectStore, key: &Path, body: Bytes) -> Result<Created> {
    let mut last = None;
    for attempt in 0..TRIES_MAX {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_millis(20 << attempt)).await;
        }
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match store.put_opts(key, body.clone().into(), options).await {
            Ok(_) => return Ok(Created::Mine),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {}
            Err(error @ (StoreError::NotSupported { .. } | StoreError::NotImplemented { .. })) => {
                return Err(Error::invalid(format!(
                    "{key}: this store cannot create an object only if it is absent, and nothing here is safe without that"
                ))
                .because(error));
            }
            Err(error) => last = Some(error),
        }
        let stored = match store.get(key).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(stored) if stored == body => return Ok(Created::Mine),
            Ok(stored) => return Ok(Created::Other(stored)),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => last = Some(error),
        }
    }
    let error = Error::unavailable(format!("{key}: create-if-absent got no clear answer in {TRIES_MAX} tries"));
    Err(match last {
        Some(source) => error.because(source),
        None => error,
    })
}

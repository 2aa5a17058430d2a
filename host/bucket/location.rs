//! Where a bucket is, as a user names it: `file:DIR`, `memory:`, `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, `gs://BUCKET/PREFIX`. Credentials
//! stand in the usual environment variables and go to the store's client (`client`) only; a URL holds none.

use crate::clock::Duration;
use crate::error::{Error, Result};
use std::fmt;
use std::path::PathBuf;

/// What a bucket's URL may look like.
pub(super) const FORMS: &str = "file:DIR, memory:, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX";

/// Time between two heartbeats of an island or a syncer.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// The same in stores that take about one overwrite of an object a second and refuse or put off what is more: half as often as they say that they
/// allow, since a beat that is tried again counts, too.
const BEAT_RARELY_EVERY: Duration = Duration::from_secs(2);
/// What the hosts of Cloudflare R2 end with.
const R2_HOSTS: &str = ".r2.cloudflarestorage.com";

/// A bucket as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The URL, or the path of a directory.
    pub url: String,
    /// Endpoint of a server other than the cloud's own. For S3 (MinIO, VersityGW, SeaweedFS, R2) it is addressed path-style; none: what
    /// `AWS_ENDPOINT_URL` says, or AWS. For Azure it holds the account, as Azurite's `http://127.0.0.1:10000/devstoreaccount1`.
    pub endpoint: Option<String>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)?;
        match &self.endpoint {
            Some(endpoint) => write!(f, " at {endpoint}"),
            None => Ok(()),
        }
    }
}

/// The kind of a store, and what its clients need to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    File(PathBuf),
    Memory,
    S3(Remote),
    Azure(Remote),
    Google(Remote),
}

/// A place in a cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote {
    /// Name of the bucket, or of the container.
    pub bucket: String,
    /// What every key begins with; empty for none. No slash at either end.
    pub prefix: String,
}

impl Location {
    /// What the URL says.
    ///
    /// # Errors
    /// Invalid: it is not one of the known forms.
    pub(super) fn place(&self) -> Result<Place> {
        let url = self.url.as_str();
        if let Some(path) = url.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Place::File(path.into()));
        }
        if url == "memory:" {
            return Ok(Place::Memory);
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            if url.is_empty() {
                return Err(Error::invalid(format!("``: expected {FORMS} as the bucket")));
            }
            return Ok(Place::File(url.into()));
        };
        let place = match scheme {
            "s3" => Place::S3,
            "az" | "azure" => Place::Azure,
            "gs" => Place::Google,
            _ => return Err(Error::invalid(format!("`{url}`: expected {FORMS} as the bucket"))),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(Error::invalid(format!(
                "{url}: expected {scheme}://NAME or {scheme}://NAME/PREFIX, found no bucket"
            )));
        }
        Ok(place(Remote { bucket: bucket.to_string(), prefix: prefix.trim_matches('/').to_string() }))
    }

    /// Whether only this process can reach the bucket.
    ///
    /// # Errors
    /// The URL is not one of the known forms.
    pub fn is_memory(&self) -> Result<bool> {
        Ok(self.place()? == Place::Memory)
    }

    /// Whether the bucket is on this machine, with no server before it.
    ///
    /// # Errors
    /// The URL is not one of the known forms.
    pub fn is_local(&self) -> Result<bool> {
        Ok(matches!(self.place()?, Place::Memory | Place::File(_)))
    }

    /// Time between two heartbeats in this bucket: what a store allows, so the same for all who meet there.
    ///
    /// # Errors
    /// Invalid: the URL is not one of the known forms, or the endpoint is no URL of a server.
    pub fn beat_every(&self) -> Result<Duration> {
        let rarely = match self.place()? {
            Place::Google(_) => true,
            Place::S3(_) => self.s3_endpoint()?.is_some_and(|endpoint| is_r2(&endpoint)),
            Place::File(_) | Place::Memory | Place::Azure(_) => false,
        };
        Ok(if rarely { BEAT_RARELY_EVERY } else { BEAT_EVERY })
    }

    /// The endpoint that was given, checked.
    ///
    /// # Errors
    /// Invalid: it is no URL of a server.
    pub(super) fn checked_endpoint(&self) -> Result<Option<String>> {
        self.endpoint.clone().map(checked).transpose()
    }

    /// The endpoint of an S3 server: given, or from the environment as other S3 clients have it; none for AWS.
    ///
    /// # Errors
    /// Invalid: it is no URL of a server.
    pub fn s3_endpoint(&self) -> Result<Option<String>> {
        match self.checked_endpoint()? {
            Some(endpoint) => Ok(Some(endpoint)),
            None => std::env::var("AWS_ENDPOINT_URL").ok().filter(|url| !url.is_empty()).map(checked).transpose(),
        }
    }

    /// An environment variable that a store cannot do without.
    ///
    /// # Errors
    /// Invalid: it is not set.
    pub(super) fn variable(&self, name: &str) -> Result<String> {
        std::env::var(name)
            .map_err(|_| Error::invalid(format!("{}: the environment variable {name} is not set", self.url)))
    }
}

fn is_r2(endpoint: &str) -> bool {
    url::Url::parse(endpoint).is_ok_and(|url| url.host_str().is_some_and(|host| host.ends_with(R2_HOSTS)))
}

fn checked(endpoint: String) -> Result<String> {
    let usable = url::Url::parse(&endpoint).is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
    if usable {
        Ok(endpoint)
    } else {
        Err(Error::invalid(format!(
            "--endpoint: expected a URL such as http://127.0.0.1:9000, found `{}`",
            endpoint.escape_debug()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Result<Place> {
        Location { url: url.into(), endpoint: None }.place()
    }

    #[test]
    fn a_url_says_which_kind_of_store_it_is_and_where_in_it() {
        let remote = |bucket: &str, prefix: &str| Remote { bucket: bucket.into(), prefix: prefix.into() };
        for (url, expected) in [
            ("file:some/dir", Place::File("some/dir".into())),
            ("file:///some/dir", Place::File("/some/dir".into())),
            ("some/dir", Place::File("some/dir".into())),
            ("memory:", Place::Memory),
            ("s3://b", Place::S3(remote("b", ""))),
            ("s3://b/some/where/", Place::S3(remote("b", "some/where"))),
            ("az://c/x", Place::Azure(remote("c", "x"))),
            ("azure://c", Place::Azure(remote("c", ""))),
            ("gs://b/x", Place::Google(remote("b", "x"))),
        ] {
            assert_eq!(place(url).unwrap(), expected, "{url}");
        }
        for url in ["", "http://b/x", "s3://", "az:///x", "gs:///"] {
            let error = place(url).unwrap_err();
            assert!(error.to_string().contains("expected"), "{url}: {error}");
        }
    }
    #[test]
    fn hearts_beat_rarely_where_an_object_can_be_overwritten_once_a_second() {
        let r2 = "https://0a1b.r2.cloudflarestorage.com";
        for (url, endpoint, ms) in [
            ("gs://b/x", None, 2000),
            ("s3://b", Some(r2), 2000),
            ("s3://b", Some("https://0a1b.eu.r2.cloudflarestorage.com:443/"), 2000),
            ("s3://b", Some("http://127.0.0.1:9000"), 500),
            ("s3://b", Some("http://127.0.0.1:9000/.r2.cloudflarestorage.com"), 500),
            ("az://c", Some("http://127.0.0.1:10000/account"), 500),
            ("some/dir", None, 500),
            ("memory:", None, 500),
        ] {
            let location = Location { url: url.into(), endpoint: endpoint.map(Into::into) };
            assert_eq!(location.beat_every().unwrap(), Duration::from_millis(ms), "{location}");
        }
    }
}

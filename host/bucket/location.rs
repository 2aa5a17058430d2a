//! Where a bucket is: `file:DIR`, `memory:`, `s3://BUCKET/PREFIX`. Credentials come from the usual AWS environment variables and go to the
//! store's client only.

use super::deadline::Deadlines;
use crate::error::{Error, Result};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// A bucket as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The URL, or the path of a directory.
    pub url: String,
    /// Endpoint of an S3 server other than AWS (MinIO, VersityGW, SeaweedFS, R2), addressed path-style; none: what `AWS_ENDPOINT_URL` says, or AWS.
    pub endpoint: Option<String>,
}

enum Place {
    File(std::path::PathBuf),
    Memory,
    S3 { bucket: String, prefix: String },
}

impl Location {
    fn place(&self) -> Result<Place> {
        let url = self.url.as_str();
        if let Some(path) = url.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Place::File(path.into()));
        }
        if url == "memory:" {
            return Ok(Place::Memory);
        }
        if let Some(rest) = url.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(Error::invalid(format!(
                    "{url}: expected s3://BUCKET or s3://BUCKET/PREFIX, found no bucket"
                )));
            }
            return Ok(Place::S3 { bucket: bucket.to_string(), prefix: prefix.trim_matches('/').to_string() });
        }
        if url.contains("://") || url.is_empty() {
            return Err(Error::invalid(format!(
                "`{url}`: expected file:DIR, memory: or s3://BUCKET/PREFIX as the bucket"
            )));
        }
        Ok(Place::File(url.into()))
    }

    /// The server's endpoint: given, or from the environment as other S3 clients have it; none for AWS.
    ///
    /// # Errors
    /// It is no URL of a server.
    pub fn server(&self) -> Result<Option<String>> {
        let found =
            self.endpoint.clone().or_else(|| std::env::var("AWS_ENDPOINT_URL").ok().filter(|url| !url.is_empty()));
        let Some(endpoint) = found else { return Ok(None) };
        let usable = url::Url::parse(&endpoint).is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.has_host());
        if !usable {
            return Err(Error::invalid(format!(
                "--endpoint: expected a URL such as http://127.0.0.1:9000, found `{}`",
                endpoint.escape_debug()
            )));
        }
        Ok(Some(endpoint))
    }

    /// An environment variable that a server other than AWS cannot do without.
    fn variable(&self, name: &str) -> Result<String> {
        std::env::var(name)
            .map_err(|_| Error::invalid(format!("{}: the environment variable {name} is not set", self.url)))
    }

    /// Whether only this process can reach the bucket.
    ///
    /// # Errors
    /// The URL is not one of the known forms.
    pub fn is_memory(&self) -> Result<bool> {
        Ok(matches!(self.place()?, Place::Memory))
    }

    /// Whether the bucket is on this machine, with no server before it.
    ///
    /// # Errors
    /// The URL is not one of the known forms.
    pub fn is_local(&self) -> Result<bool> {
        Ok(matches!(self.place()?, Place::Memory | Place::File(_)))
    }

    /// A client for the bucket. A local directory is created when `create` is set; an S3 bucket is, where the server is not AWS.
    ///
    /// # Errors
    /// Invalid: unknown form, unusable credentials or directory. Unavailable: the server does not answer.
    pub async fn open(&self, create: bool) -> Result<Arc<dyn ObjectStore>> {
        match self.place()? {
            Place::Memory => Ok(Arc::new(InMemory::new())),
            Place::File(path) => {
                if create {
                    std::fs::create_dir_all(&path).map_err(|e| {
                        Error::invalid(format!("{}: the bucket's directory cannot be made", path.display())).because(e)
                    })?;
                }
                if !path.is_dir() {
                    return Err(Error::invalid(format!(
                        "{}: expected a directory that is a bucket, found none",
                        path.display()
                    )));
                }
                let store = LocalFileSystem::new_with_prefix(&path).map_err(|e| {
                    Error::invalid(format!("{}: cannot be used as a bucket", path.display())).because(e)
                })?;
                Ok(Arc::new(store.with_automatic_cleanup(true)))
            }
            Place::S3 { bucket, prefix } => {
                // Ring is the one crypto provider of this binary; a second installation is refused and harmless.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let endpoint = self.server()?;
                if let Some(endpoint) = &endpoint {
                    // Found out here: a client without credentials would ask for those of a cloud's machine.
                    self.variable("AWS_ACCESS_KEY_ID")?;
                    self.variable("AWS_SECRET_ACCESS_KEY")?;
                    if create {
                        self.create_s3_bucket(endpoint, &bucket).await?;
                    }
                }
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(&bucket)
                    .with_retry(RetryConfig {
                        max_retries: 4,
                        retry_timeout: Duration::from_secs(30),
                        ..RetryConfig::default()
                    })
                    .with_client_options(
                        ClientOptions::new()
                            .with_connect_timeout(Duration::from_secs(5))
                            // Each call has a deadline that follows the link; see `deadline.rs`.
                            .with_timeout_disabled()
                            .with_allow_http(true),
                    );
                if std::env::var_os("AWS_REGION").is_none() && std::env::var_os("AWS_DEFAULT_REGION").is_none() {
                    builder = builder.with_region("us-east-1");
                }
                if let Some(endpoint) = &endpoint {
                    builder = builder.with_endpoint(endpoint).with_virtual_hosted_style_request(false);
                }
                let store = builder.build().map_err(|e| {
                    Error::invalid(format!(
                        "{}: cannot be opened; expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and --endpoint for a server other than AWS)",
                        self.url
                    ))
                    .because(e)
                })?;
                let store = Deadlines::new(Arc::new(store));
                if prefix.is_empty() { Ok(Arc::new(store)) } else { Ok(Arc::new(PrefixStore::new(store, prefix))) }
            }
        }
    }

    async fn create_s3_bucket(&self, endpoint: &str, bucket: &str) -> Result<()> {
        use aws_sdk_s3::config::{
            BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        };
        let token = std::env::var("AWS_SESSION_TOKEN").ok();
        let credentials = Credentials::new(
            self.variable("AWS_ACCESS_KEY_ID")?,
            self.variable("AWS_SECRET_ACCESS_KEY")?,
            token,
            None,
            "environment",
        );
        let region =
            std::env::var("AWS_REGION").or_else(|_| std::env::var("AWS_DEFAULT_REGION")).unwrap_or("us-east-1".into());
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(aws_smithy_http_client::tls::Provider::Rustls(
                aws_smithy_http_client::tls::rustls_provider::CryptoMode::Ring,
            ))
            .build_https();
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http)
            .credentials_provider(credentials)
            .region(Region::new(region))
            .endpoint_url(endpoint)
            .force_path_style(true)
            // Servers other than AWS need not know the newer checksums.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .build();
        let client = aws_sdk_s3::Client::from_conf(config);
        let Err(absent) = client.head_bucket().bucket(bucket).send().await else { return Ok(()) };
        match absent.raw_response().map(|answer| answer.status().as_u16()) {
            Some(404) => {}
            Some(401 | 403) => {
                return Err(Error::invalid(format!(
                    "{}: {endpoint} refuses the credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                    self.url
                ))
                .because(absent));
            }
            _ => {
                return Err(Error::unavailable(format!(
                    "{}: {endpoint} does not answer; check the endpoint",
                    self.url
                ))
                .because(absent));
            }
        }
        let made = client.create_bucket().bucket(bucket).send().await;
        match made {
            Ok(_) => Ok(()),
            // Three islands that start together may all find it absent.
            Err(error) if error.as_service_error().is_some_and(|e| e.is_bucket_already_owned_by_you() || e.is_bucket_already_exists()) => {
                Ok(())
            }
            Err(error) => Err(Error::unavailable(format!(
                "{}: the bucket is not there and {endpoint} does not let us create it; check the endpoint and the credentials",
                self.url
            ))
            .because(error)),
        }
    }
}

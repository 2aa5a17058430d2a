//! Clients for the places where a bucket can be: local directories, memory, S3 and servers that speak it, Azure Blob Storage, Google Cloud
//! Storage. Credentials come from the environment variables that the clouds' own tools read.

use super::deadline::Deadlines;
use super::location::{Location, Place, Remote};
use super::provision;
use crate::error::{Error, Result};
use object_store::aws::AmazonS3Builder;
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// Environment variables any of which gives an Azure account's credentials, and how the client calls them.
const AZURE_CREDENTIALS: [AzureConfigKey; 4] =
    [AzureConfigKey::AccessKey, AzureConfigKey::SasKey, AzureConfigKey::Token, AzureConfigKey::ClientId];

impl Location {
    /// A client for the bucket. With `create`, a local directory is made where it is absent, and so is a bucket on a server that
    /// `--endpoint` names; in the clouds themselves `tombolo bucket init` does that.
    ///
    /// # Errors
    /// Invalid: unknown form, unusable credentials or directory. Unavailable: the server does not answer.
    pub async fn open(&self, create: bool) -> Result<Arc<dyn ObjectStore>> {
        match self.place()? {
            Place::Memory => Ok(Arc::new(InMemory::new())),
            Place::File(path) => {
                if create {
                    provision::make_directory(&path)?;
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
            Place::S3(remote) => {
                let endpoint = self.s3_endpoint()?;
                if endpoint.is_some() {
                    // Found out here: a client without credentials would ask for those of a cloud's machine.
                    self.variable("AWS_ACCESS_KEY_ID")?;
                    self.variable("AWS_SECRET_ACCESS_KEY")?;
                    if create {
                        provision::make_s3_bucket(self, &remote.bucket).await?;
                    }
                }
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(&remote.bucket)
                    .with_retry(retries())
                    .with_client_options(options());
                if std::env::var_os("AWS_REGION").is_none() && std::env::var_os("AWS_DEFAULT_REGION").is_none() {
                    builder = builder.with_region("us-east-1");
                }
                if let Some(endpoint) = &endpoint {
                    builder = builder.with_endpoint(endpoint).with_virtual_hosted_style_request(false);
                }
                let hint = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and --endpoint for a server other than AWS)";
                Ok(below(builder.build().map_err(|e| self.unusable(hint, e))?, &remote))
            }
            Place::Azure(remote) => {
                let store = self.azure(&remote)?;
                if create && self.endpoint.is_some() {
                    provision::make_azure_container(self, &store, &remote.bucket).await?;
                }
                Ok(below(store, &remote))
            }
            Place::Google(remote) => {
                install_crypto();
                let mut builder = GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(&remote.bucket)
                    .with_retry(retries())
                    .with_client_options(options());
                if let Some(endpoint) = self.checked_endpoint()? {
                    builder = builder.with_base_url(&endpoint);
                }
                let hint = "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT with the path of a key";
                Ok(below(builder.build().map_err(|e| self.unusable(hint, e))?, &remote))
            }
        }
    }

    /// A client for a container, with the account and the credentials of the environment.
    ///
    /// # Errors
    /// Invalid: there are none that can be used.
    pub(super) fn azure(&self, remote: &Remote) -> Result<MicrosoftAzure> {
        install_crypto();
        let mut builder = azure_environment()
            .with_container_name(&remote.bucket)
            .with_retry(retries())
            .with_client_options(options());
        let hint = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY";
        if let Some(endpoint) = self.checked_endpoint()? {
            // As above: it would ask for those of a cloud's machine.
            if AZURE_CREDENTIALS.iter().all(|key| builder.get_config_value(key).is_none()) {
                return Err(Error::invalid(format!("{}: found no credentials; expected {hint}", self.url)));
            }
            builder = builder.with_endpoint(endpoint);
        }
        builder.build().map_err(|e| self.unusable(hint, e))
    }

    fn unusable(&self, expected: &str, error: object_store::Error) -> Error {
        Error::invalid(format!("{}: cannot be opened; expected {expected} in the environment", self.url)).because(error)
    }
}

/// What the environment says of an Azure account.
pub(super) fn azure_environment() -> MicrosoftAzureBuilder {
    MicrosoftAzureBuilder::from_env()
}

/// Ring is the one crypto provider of this binary; a second installation is refused and harmless.
pub(super) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn retries() -> RetryConfig {
    RetryConfig { max_retries: 4, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() }
}

fn options() -> ClientOptions {
    install_crypto();
    ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(5))
        // Each call has a deadline that follows the link; see `deadline.rs`.
        .with_timeout_disabled()
        .with_allow_http(true)
}

fn below(store: impl ObjectStore, remote: &Remote) -> Arc<dyn ObjectStore> {
    let store = Deadlines::new(Arc::new(store));
    if remote.prefix.is_empty() { Arc::new(store) } else { Arc::new(PrefixStore::new(store, remote.prefix.as_str())) }
}

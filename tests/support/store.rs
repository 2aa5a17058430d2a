//! Every kind of store that a bucket can be: memory, a local directory, each S3 server of this machine, and Azurite.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use tombolo::bucket::{Deadlines, Location};

use super::server::{Server, azurite, servers};

/// An empty store.
pub struct Place {
    /// What it is: `memory`, `directory`, or the name of a server.
    pub name: &'static str,
    /// The store, as the host sees it.
    pub store: Arc<dyn ObjectStore>,
}

/// A client for `bucket` of a server, with the retries, deadlines and resumed downloads that the host's have.
pub fn on_server(server: &Server, bucket: &str) -> Arc<dyn ObjectStore> {
    through(server, &server.endpoint, bucket)
}

/// As [`on_server`], for whoever finds the server behind another endpoint.
pub fn through(server: &Server, endpoint: &str, bucket: &str) -> Arc<dyn ObjectStore> {
    // The one crypto provider of this program; a second call finds it there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: 4, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() };
    let options =
        ClientOptions::new().with_connect_timeout(Duration::from_secs(5)).with_timeout_disabled().with_allow_http(true);
    if server.name == "azurite" {
        let store = MicrosoftAzureBuilder::new()
            .with_endpoint(endpoint.into())
            .with_container_name(bucket)
            .with_account(&server.access_key)
            .with_access_key(&server.secret_key)
            .with_retry(retry)
            .with_client_options(options)
            .build();
        return lasting(store.expect("a store"));
    }
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id(&server.access_key)
        .with_secret_access_key(&server.secret_key)
        .with_retry(retry)
        .with_client_options(options)
        .build();
    lasting(store.expect("a store"))
}

fn lasting(store: impl ObjectStore) -> Arc<dyn ObjectStore> {
    Arc::new(Deadlines::new(Arc::new(store)))
}

async fn open(url: String) -> Arc<dyn ObjectStore> {
    Location { url, endpoint: None }.open(true).await.expect("a local store opens")
}

/// Runs `body` on an empty store of every kind, one after another. A panic is passed on, after a line that says where it happened.
pub fn everywhere<F>(body: impl Fn(Place) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let on = |name: &'static str, store: Arc<dyn ObjectStore>| {
        // In a task, so that a panic comes back as a value.
        if let Err(error) = runtime.block_on(runtime.spawn(body(Place { name, store }))) {
            super::say(&format!("on {name}:"));
            std::panic::resume_unwind(error.into_panic());
        }
    };
    on("memory", runtime.block_on(open("memory:".into())));
    let folder = tempfile::tempdir().expect("a folder");
    on("directory", runtime.block_on(open(format!("file:{}", folder.path().display()))));
    for server in servers().iter().chain(azurite()) {
        on(server.name, on_server(server, &server.bucket()));
    }
}

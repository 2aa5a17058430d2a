//! Making buckets, and the lifecycle rules that back up what Tombolo removes by itself: what object_store cannot do, and no role needs.
//!
//! A rule is a backstop that may be absent: stores differ in what they take, and nothing relies on one. No rule touches what a live run
//! could name, since no store knows which objects those are: old offers, versions and checkpoints are deleted by the roles that own them.
//! What is left for rules is what nobody owns any more: uploads that were never completed, and what an examination of the store left when its
//! process was killed.
//!
//! S3 has one configuration of all rules, and a put replaces it. So what is there is read first, rules of others stay, and where it
//! cannot be read nothing is written. Ours are added one at a time, so that one that a store refuses does not keep out the others.

use super::client::{azure_environment, install_crypto};
use super::key::doctors;
use super::location::{Location, Place, Remote};
use crate::error::{Error, Result};
use aws_sdk_s3::Client;
use aws_sdk_s3::error::{DisplayErrorContext, SdkError};
use aws_sdk_s3::types::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, BucketLocationConstraint, CreateBucketConfiguration,
    ExpirationStatus, LifecycleExpiration, LifecycleRule, LifecycleRuleFilter,
};
use object_store::azure::{AzureAuthorizer, AzureConfigKey, AzureCredential, MicrosoftAzure};
use object_store::client::{HttpRequest, HttpRequestBody};
use std::fmt;
use std::path::Path;

/// Days after which an upload that was not completed is aborted: far longer than any of ours takes.
const UPLOAD_DAYS: i32 = 3;
/// Days after which what an examination left is deleted. An examination takes seconds.
const DOCTOR_DAYS: i32 = 1;

/// What became of one thing that was to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It was so already.
    There,
    /// The store does not do it, and says why.
    Refused(String),
    /// Not something to be done here; what to do instead, if anything.
    Left(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::There => f.write_str("there already"),
            Outcome::Refused(why) => write!(f, "refused by the store ({why})"),
            Outcome::Left(why) => write!(f, "not done: {why}"),
        }
    }
}

/// One thing that [`init`] does, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The thing.
    pub what: String,
    /// What became of it.
    pub outcome: Outcome,
}

fn step(what: impl Into<String>, outcome: Outcome) -> Step {
    Step { what: what.into(), outcome }
}

/// Makes the bucket if it is absent, and sets the lifecycle rules that the store takes.
///
/// # Errors
/// Invalid: unknown form, unusable credentials or directory. Unavailable: the server does not answer, or does not let us make the bucket. A
/// refused rule is no error.
pub async fn init(location: &Location) -> Result<Vec<Step>> {
    match location.place()? {
        Place::Memory => Err(Error::invalid("memory: ends with this process; there is nothing to make")),
        Place::File(path) => {
            let there = path.is_dir();
            make_directory(&path)?;
            Ok(vec![
                step(format!("directory {}", path.display()), if there { Outcome::There } else { Outcome::Done }),
                step("lifecycle rules", Outcome::Left("directories have none".into())),
            ])
        }
        Place::S3(remote) => {
            let made = make_s3_bucket(location, &remote.bucket).await?;
            let mut steps = vec![step(format!("bucket {}", remote.bucket), made)];
            steps.extend(set_rules(&s3_client(location)?, &remote).await);
            Ok(steps)
        }
        Place::Azure(remote) => {
            let made = make_azure_container(location, &location.azure(&remote)?, &remote.bucket).await?;
            let rule = format!(
                "Azure's rules belong to the account; add one there that deletes block blobs with the prefix `{}/{}` after {DOCTOR_DAYS} \
                 day; uploads that were not completed Azure discards by itself after a week",
                remote.bucket,
                leftovers(&remote)
            );
            Ok(vec![step(format!("container {}", remote.bucket), made), step("lifecycle rules", Outcome::Left(rule))])
        }
        Place::Google(remote) => {
            let bucket = format!("make it with `gcloud storage buckets create gs://{}`", remote.bucket);
            let rules = format!(
                "set them with `gcloud storage buckets update --lifecycle-file`: AbortIncompleteMultipartUpload at age {UPLOAD_DAYS}, and \
                 Delete at age {DOCTOR_DAYS} with matchesPrefix `{}`",
                leftovers(&remote)
            );
            Ok(vec![
                step(format!("bucket {}", remote.bucket), Outcome::Left(bucket)),
                step("lifecycle rules", Outcome::Left(rules)),
            ])
        }
    }
}

/// Makes a local directory, with those above it.
///
/// # Errors
/// Invalid: it cannot be made.
pub(super) fn make_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path)
        .map_err(|e| Error::invalid(format!("{}: the bucket's directory cannot be made", path.display())).because(e))
}

/// A client of Amazon's SDK, with the credentials of the environment.
fn s3_client(location: &Location) -> Result<Client> {
    use aws_sdk_s3::config::{
        BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    };
    let credentials = Credentials::new(
        location.variable("AWS_ACCESS_KEY_ID")?,
        location.variable("AWS_SECRET_ACCESS_KEY")?,
        std::env::var("AWS_SESSION_TOKEN").ok(),
        None,
        "environment",
    );
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(aws_smithy_http_client::tls::Provider::Rustls(
            aws_smithy_http_client::tls::rustls_provider::CryptoMode::Ring,
        ))
        .build_https();
    let mut config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .credentials_provider(credentials)
        .region(Region::new(region()));
    if let Some(endpoint) = location.s3_endpoint()? {
        config = config
            .endpoint_url(endpoint)
            .force_path_style(true)
            // Servers other than AWS need not know the newer checksums.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    }
    Ok(Client::from_conf(config.build()))
}

fn region() -> String {
    let set = std::env::var("AWS_REGION").or_else(|_| std::env::var("AWS_DEFAULT_REGION"));
    set.unwrap_or_else(|_| "us-east-1".into())
}

/// Makes an S3 bucket unless it is there.
///
/// # Errors
/// Invalid: the credentials are refused or absent. Unavailable: no answer, or the bucket cannot be made.
pub(super) async fn make_s3_bucket(location: &Location, bucket: &str) -> Result<Outcome> {
    let client = s3_client(location)?;
    let server = location.s3_endpoint()?;
    let server_name = server.as_deref().unwrap_or("AWS");
    let Err(absent) = client.head_bucket().bucket(bucket).send().await else { return Ok(Outcome::There) };
    match absent.raw_response().map(|answer| answer.status().as_u16()) {
        Some(404) => {}
        Some(401 | 403) => {
            return Err(Error::invalid(format!(
                "{}: {server_name} refuses the credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                location.url
            ))
            .because(absent));
        }
        _ => {
            return Err(Error::unavailable(format!(
                "{}: {server_name} does not answer; check the endpoint",
                location.url
            ))
            .because(absent));
        }
    }
    let mut request = client.create_bucket().bucket(bucket);
    if server.is_none() && region() != "us-east-1" {
        let place = BucketLocationConstraint::from(region().as_str());
        request = request
            .create_bucket_configuration(CreateBucketConfiguration::builder().location_constraint(place).build());
    }
    match request.send().await {
        Ok(_) => Ok(Outcome::Done),
        // Three islands that start together may all find it absent.
        Err(error)
            if error
                .as_service_error()
                .is_some_and(|e| e.is_bucket_already_owned_by_you() || e.is_bucket_already_exists()) =>
        {
            Ok(Outcome::There)
        }
        Err(error) => Err(Error::unavailable(format!(
            "{}: the bucket is not there and {server_name} does not let us create it; check the endpoint and the credentials",
            location.url
        ))
        .because(error)),
    }
}

/// Makes the container of a location unless it is there.
///
/// # Errors
/// Invalid: the credentials are refused. Unavailable: no answer, or the container cannot be made.
pub(super) async fn make_azure_container(
    location: &Location,
    store: &MicrosoftAzure,
    container: &str,
) -> Result<Outcome> {
    let said = azure_environment();
    let account = said.get_config_value(&AzureConfigKey::AccountName).unwrap_or_default();
    let service = location
        .checked_endpoint()?
        .or_else(|| said.get_config_value(&AzureConfigKey::Endpoint))
        .unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let credential = store.credentials().get_credential().await.map_err(|e| {
        Error::unavailable(format!("{}: the account's credentials cannot be had", location.url)).because(e)
    })?;
    make_container(&service, &account, &credential, container).await.map_err(|error| error.at(&location.url))
}

/// Makes a container of the account that `service` serves, unless it is there: one signed request, which object_store has no call for.
///
/// # Errors
/// As [`init`].
pub async fn make_container(
    service: &str,
    account: &str,
    credential: &AzureCredential,
    container: &str,
) -> Result<Outcome> {
    let url = format!("{}/{container}?restype=container", service.trim_end_matches('/'));
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.method_mut() = reqwest::Method::PUT;
    *request.uri_mut() =
        url.parse().map_err(|e| Error::invalid(format!("`{container}`: not the name of a container")).because(e))?;
    request.headers_mut().insert(reqwest::header::CONTENT_LENGTH, reqwest::header::HeaderValue::from_static("0"));
    AzureAuthorizer::new(credential, account)
        .try_authorize(&mut request)
        .map_err(|e| Error::invalid("the credentials sign nothing; check AZURE_STORAGE_ACCOUNT_KEY").because(e))?;
    install_crypto();
    let sent = reqwest::Client::new()
        .put(request.uri().to_string())
        .headers(request.headers().clone())
        .send()
        .await
        // A signed URL stays out of messages.
        .map_err(|e| {
            Error::unavailable(format!("{service} does not answer; check the endpoint")).because(e.without_url())
        })?;
    match sent.status().as_u16() {
        201 => Ok(Outcome::Done),
        409 => Ok(Outcome::There),
        401 | 403 => Err(Error::invalid(format!(
            "{service} refuses the credentials; check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
        ))),
        status => Err(Error::unavailable(format!(
            "the container cannot be made: {service} answered {status}; check its name and the endpoint"
        ))),
    }
}

/// What the keys of all examinations begin with, from the beginning of the bucket.
fn leftovers(remote: &Remote) -> String {
    format!("{}{}/", below(remote), doctors())
}

/// What every key of this place begins with, from the beginning of the bucket.
fn below(remote: &Remote) -> String {
    if remote.prefix.is_empty() { String::new() } else { format!("{}/", remote.prefix) }
}

/// The rules of a place, each with what it does in words. The names hold the place, since another one may share the bucket.
fn rules(remote: &Remote) -> Vec<(String, LifecycleRule)> {
    let rule = |name: &str, prefix: String| {
        LifecycleRule::builder()
            .id(format!("tombolo {name} {prefix}").trim_end().to_string())
            .status(ExpirationStatus::Enabled)
            .filter(LifecycleRuleFilter::builder().prefix(prefix).build())
    };
    let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(UPLOAD_DAYS).build();
    let expire = LifecycleExpiration::builder().days(DOCTOR_DAYS).build();
    let built = |rule: std::result::Result<LifecycleRule, _>| rule.expect("a rule has its status");
    vec![
        (
            format!("rule: abort uploads that were not completed within {UPLOAD_DAYS} days"),
            built(rule("uploads", below(remote)).abort_incomplete_multipart_upload(abort).build()),
        ),
        (
            format!("rule: delete what is below {} after {DOCTOR_DAYS} day", leftovers(remote)),
            built(rule("doctor", leftovers(remote)).expiration(expire).build()),
        ),
    ]
}

/// Adds each rule to those that the bucket has.
async fn set_rules(client: &Client, remote: &Remote) -> Vec<Step> {
    let mut present = match read_rules(client, &remote.bucket).await {
        Ok(present) => present,
        Err(why) => {
            let refused = |(what, _)| step(what, Outcome::Refused(format!("it does not say which it has: {why}")));
            return rules(remote).into_iter().map(refused).collect();
        }
    };
    let mut steps = Vec::new();
    for (what, rule) in rules(remote) {
        if present.contains(&rule) {
            steps.push(step(what, Outcome::There));
            continue;
        }
        let mut wanted: Vec<LifecycleRule> = present.iter().filter(|r| r.id != rule.id).cloned().collect();
        wanted.push(rule.clone());
        let configuration = BucketLifecycleConfiguration::builder().set_rules(Some(wanted.clone())).build();
        let configuration = configuration.expect("it has rules");
        let put =
            client.put_bucket_lifecycle_configuration().bucket(&remote.bucket).lifecycle_configuration(configuration);
        let outcome = match put.send().await {
            Err(error) => Outcome::Refused(reason(&error)),
            // An answer is not yet a rule.
            Ok(_) => match read_rules(client, &remote.bucket).await {
                Ok(now) if now.iter().any(|r| r.id == rule.id) => {
                    present = wanted;
                    Outcome::Done
                }
                Ok(_) => Outcome::Refused("it was taken, and is not among the bucket's rules afterwards".into()),
                Err(why) => Outcome::Refused(format!("it was taken, and then: {why}")),
            },
        };
        steps.push(step(what, outcome));
    }
    steps
}

/// The rules that a bucket has, or why they cannot be known.
async fn read_rules(client: &Client, bucket: &str) -> std::result::Result<Vec<LifecycleRule>, String> {
    match client.get_bucket_lifecycle_configuration().bucket(bucket).send().await {
        Ok(found) => Ok(found.rules.unwrap_or_default()),
        Err(error) if code(&error) == Some("NoSuchLifecycleConfiguration") => Ok(Vec::new()),
        Err(error) => Err(reason(&error)),
    }
}

fn code<E: aws_sdk_s3::error::ProvideErrorMetadata>(error: &SdkError<E>) -> Option<&str> {
    error.as_service_error().and_then(|e| e.meta().code())
}

/// What the store says, in few words where it has some.
fn reason<E>(error: &SdkError<E>) -> String
where
    E: aws_sdk_s3::error::ProvideErrorMetadata + std::error::Error + 'static,
{
    let Some(said) = error.as_service_error().map(|e| e.meta()) else { return DisplayErrorContext(error).to_string() };
    match (said.code(), said.message()) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.into(),
        _ => DisplayErrorContext(error).to_string(),
    }
}

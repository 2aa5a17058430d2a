//! Making buckets: twice is as good as once, a rule that a store took is among its rules, and those of others stay.

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{
    BucketLifecycleConfiguration, ExpirationStatus, LifecycleExpiration, LifecycleRule, LifecycleRuleFilter,
};

use crate::support::program::{SMALL, Workshop};
use crate::support::say;
use crate::support::server::{Server, azurite, servers};

fn workshop() -> Workshop {
    Workshop::new("run = \"small\"", SMALL)
}

/// What `bucket init` says of each thing, by its first words.
fn outcome<'a>(said: &'a str, what: &str) -> &'a str {
    let line = said.lines().find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("`{what}` in: {said}"));
    line.rsplit_once(": ").map_or(line, |_| &line[what.len()..])
}

#[test]
fn a_directory_is_made_once_and_has_no_rules() {
    let workshop = workshop();
    let first = workshop.run_well("bucket init file:some/bucket").stdout;
    assert_eq!(first, "directory some/bucket: done\nlifecycle rules: not done: directories have none");
    assert!(workshop.path("some/bucket").is_dir());
    let second = workshop.run_well("bucket init some/bucket").stdout;
    assert!(second.starts_with("directory some/bucket: there already\n"), "{second}");
    workshop.run_well("doctor some/bucket");
    assert!(workshop.run("bucket init memory:").error(2).contains("there is nothing to make"));
}

/// Rules of the bucket by their ids; none where the store does not say.
async fn rules(client: &Client, bucket: &str) -> Vec<String> {
    let found = client.get_bucket_lifecycle_configuration().bucket(bucket).send().await;
    let rules = found.ok().and_then(|found| found.rules).unwrap_or_default();
    rules.into_iter().filter_map(|rule| rule.id).collect()
}

/// Sets a rule of somebody else; whether the store took it.
async fn set_foreign_rule(client: &Client, bucket: &str) -> bool {
    let rule = LifecycleRule::builder()
        .id("somebody else")
        .status(ExpirationStatus::Enabled)
        .filter(LifecycleRuleFilter::builder().prefix("other/").build())
        .expiration(LifecycleExpiration::builder().days(30).build())
        .build()
        .expect("a rule");
    let configuration = BucketLifecycleConfiguration::builder().rules(rule).build().expect("a configuration");
    let put = client.put_bucket_lifecycle_configuration().bucket(bucket).lifecycle_configuration(configuration);
    put.send().await.is_ok()
}

fn on_server(server: &Server) {
    let mut workshop = workshop();
    workshop.set(server.credentials());
    let name = server.fresh_name();
    let init = format!("bucket init {}/some/where --endpoint {}", server.url(&name), server.endpoint);
    let first = workshop.run_well(&init).stdout;
    say(&format!("{}:\n{first}", server.name));
    assert_eq!(first.lines().next(), Some(format!("bucket {name}: done").as_str()), "{}", server.name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = server.client();
    let ids = ["tombolo uploads some/where/", "tombolo doctor some/where/doctor/"];
    let present = runtime.block_on(rules(&client, &name));
    let lines: Vec<&str> = first.lines().skip(1).collect();
    assert_eq!(lines.len(), ids.len(), "one line for each rule: {first}");
    for (line, id) in lines.iter().zip(ids) {
        let there = present.iter().any(|found| found == id);
        assert!(line.starts_with("rule: "), "{line}");
        assert_eq!(line.ends_with(": done"), there, "{}: {line}, and it has {present:?}", server.name);
        assert!(there || line.contains("refused by the store ("), "{}: {line}", server.name);
    }

    let foreign = runtime.block_on(set_foreign_rule(&client, &name));
    let second = workshop.run_well(&init).stdout;
    assert!(second.starts_with(&format!("bucket {name}: there already\n")), "{second}");
    let now = runtime.block_on(rules(&client, &name));
    assert_eq!(now.iter().any(|id| id == "somebody else"), foreign, "{}: {now:?}", server.name);
    for id in &present {
        assert!(now.contains(id), "{}: {id} is set again: {now:?}", server.name);
    }
    workshop.run_well(&format!("doctor {}/some/where --endpoint {}", server.url(&name), server.endpoint));
}

#[test]
fn a_bucket_of_a_server_is_made_once_and_has_the_rules_that_are_said_to_be_set_beside_those_of_others() {
    for server in servers() {
        on_server(server);
    }
}

#[test]
fn a_container_is_made_once_and_what_is_left_to_be_done_is_said() {
    let Some(server) = azurite() else { return };
    let mut workshop = workshop();
    workshop.set(server.credentials());
    let name = server.fresh_name();
    let place = format!("{}/some/where --endpoint {}", server.url(&name), server.endpoint);
    let absent = workshop.run(&format!("doctor {place}"));
    assert!(absent.error(2).contains("there is no such bucket; `tombolo bucket init` makes one"));
    let first = workshop.run_well(&format!("bucket init {place}")).stdout;
    assert_eq!(outcome(&first, "container"), format!(" {name}: done"));
    assert!(first.contains(&format!("`{name}/some/where/doctor/`")), "{first}");
    let second = workshop.run_well(&format!("bucket init {place}")).stdout;
    assert_eq!(outcome(&second, "container"), format!(" {name}: there already"));
    workshop.run_well(&format!("doctor {place}"));

    workshop.set([("AZURE_STORAGE_ACCOUNT_KEY", "AAAA".to_owned())]);
    let error = workshop.run(&format!("bucket init {place}"));
    assert!(error.error(2).contains("refuses the credentials"), "{}", error.stderr);
    let error = workshop.run(&format!("doctor {place}"));
    assert!(error.error(2).contains("refuses the credentials"), "{}", error.stderr);
}

#[test]
fn what_is_not_done_on_google_cloud_storage_is_said() {
    let said = workshop().run_well("bucket init gs://shared/some/where").stdout;
    for part in ["gcloud storage buckets create gs://shared", "AbortIncompleteMultipartUpload", "`some/where/doctor/`"]
    {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
}

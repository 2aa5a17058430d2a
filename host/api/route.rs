//! What a request asks for, from its method and its path. Nothing in a path is decoded: hashes and names of runs consist of letters, digits and
//! dashes, and whatever else stands in their place is refused before it comes near a key.

use super::problem::Problem;
use super::token::Access;
use crate::bucket::key::is_run_name;
use crate::policy::Hash;
use hyper::{Method, StatusCode};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Whether the server is there.
    Health,
    /// The description of this interface.
    Document,
    /// The policies of the bucket.
    Policies,
    /// To admit and store a policy.
    Upload,
    /// The card of a policy.
    Policy(Hash),
    /// The bytes of a policy.
    Component(Hash),
    /// The runs of the bucket.
    Runs,
    /// How a run stands.
    Run(String),
    /// To switch a run to another policy.
    Activate(String),
}

/// Every method and path, as the description has them.
#[cfg(test)]
const ALL: [(&str, &str); 9] = [
    ("get", "/healthz"),
    ("get", "/v1/openapi.json"),
    ("get", "/v1/policies"),
    ("put", "/v1/policies"),
    ("get", "/v1/policies/{hash}"),
    ("get", "/v1/policies/{hash}/component"),
    ("get", "/v1/runs"),
    ("get", "/v1/runs/{run}"),
    ("post", "/v1/runs/{run}/activate"),
];

impl Route {
    /// What a method and a path ask for.
    ///
    /// # Errors
    /// 404, 405 with the methods that there are, or 400 where a part of the path is not what it should be.
    pub fn parse(method: &Method, path: &str) -> Result<Route, Problem> {
        let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        let hash = |text: &str| {
            text.parse::<Hash>()
                .map_err(|_| Problem::field("path.hash", "the SHA-256 of a policy: 64 digits of 0-9 and a-f", text))
        };
        let run = |text: &str| match is_run_name(text) {
            true => Ok(text.to_string()),
            false => Err(Problem::field(
                "path.run",
                "the name of a run: 1 to 64 lower-case letters, digits and dashes",
                text,
            )),
        };
        let get = |route: Result<Route, Problem>| match *method {
            Method::GET => route,
            _ => Err(Problem::method("GET", method.as_str())),
        };
        match parts[..] {
            ["healthz"] => get(Ok(Route::Health)),
            ["v1", "openapi.json"] => get(Ok(Route::Document)),
            ["v1", "policies"] => match *method {
                Method::GET => Ok(Route::Policies),
                Method::PUT => Ok(Route::Upload),
                _ => Err(Problem::method("GET, PUT", method.as_str())),
            },
            ["v1", "policies", text] => get(hash(text).map(Route::Policy)),
            ["v1", "policies", text, "component"] => get(hash(text).map(Route::Component)),
            ["v1", "runs"] => get(Ok(Route::Runs)),
            ["v1", "runs", text] => get(run(text).map(Route::Run)),
            ["v1", "runs", text, "activate"] => match *method {
                Method::POST => run(text).map(Route::Activate),
                _ => Err(Problem::method("POST", method.as_str())),
            },
            _ => Err(Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path").at(
                "path",
                "one of those that GET /v1/openapi.json describes",
                path,
            )),
        }
    }

    /// What a token must allow to ask for this; none where no token is needed.
    pub fn access(&self) -> Option<Access> {
        match self {
            Route::Health | Route::Document => None,
            Route::Policies | Route::Policy(_) | Route::Component(_) | Route::Runs | Route::Run(_) => {
                Some(Access::Read)
            }
            Route::Upload | Route::Activate(_) => Some(Access::Operate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_description_has_every_path_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(super::super::DOCUMENT).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let described: BTreeSet<(&str, &str)> = paths
            .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|m| (m.as_str(), path.as_str())))
            .filter(|(method, _)| *method != "parameters")
            .collect();
        assert_eq!(described, BTreeSet::from(ALL));
        let hash = "ab".repeat(32);
        for (method, path) in ALL {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace("{hash}", &hash).replace("{run}", "small");
            let route = Route::parse(&method, &path).unwrap();
            assert_eq!(route.access() == Some(Access::Operate), method != Method::GET, "{path}");
        }
    }

    #[test]
    fn what_is_no_hash_and_no_name_is_refused_before_it_comes_near_a_key() {
        let hash = "ab".repeat(32);
        let status = |path: &str| Route::parse(&Method::GET, path).unwrap_err().status().as_u16();
        for text in ["..", "%2e%2e", "a.b", "A", "", "-a", "policy", "doctor", "%00", "a%2fb", "é", &"a".repeat(65)] {
            assert_eq!(status(&format!("/v1/runs/{text}")), 400, "{text}");
            assert_eq!(status(&format!("/v1/policies/{text}")), 400, "{text}");
        }
        for path in ["", "/", "//", "/v1", "/v1/", "/v1/runs/a/", "/v1/runs/../policies", "/v1/runs/a/log", "/V1/runs"]
        {
            assert_eq!(status(path), 404, "{path}");
        }
        assert_eq!(status(&format!("/v1/policies/{}", hash.to_uppercase())), 400);
        assert_eq!(status(&format!("/v1/policies/{hash}.wasm")), 400);
        assert_eq!(Route::parse(&Method::DELETE, "/v1/policies").unwrap_err().status().as_u16(), 405);
        assert_eq!(Route::parse(&Method::POST, &format!("/v1/policies/{hash}")).unwrap_err().status().as_u16(), 405);
    }
}

//! The query of a request: each field once, and only fields that are known.

use super::problem::Problem;
use std::collections::BTreeMap;

/// Fields of a query that nobody has taken yet.
#[derive(Debug)]
pub struct Query {
    fields: BTreeMap<String, String>,
}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// 400: a field stands in it twice.
    pub fn parse(query: Option<&str>) -> Result<Query, Problem> {
        let mut fields = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if fields.insert(name.to_string(), value.into_owned()).is_some() {
                return Err(Problem::field("query", "each field once", format!("{name} twice")));
            }
        }
        Ok(Query { fields })
    }

    /// The value of a field, if it is there.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.fields.remove(name)
    }

    /// Holds that every field has been taken.
    ///
    /// # Errors
    /// 400 with a field that is none of the `known`.
    pub fn end(self, known: &[&str]) -> Result<(), Problem> {
        match self.fields.into_keys().next() {
            None => Ok(()),
            Some(name) if known.is_empty() => Err(Problem::field("query", "no query", name)),
            Some(name) => Err(Problem::field("query", format!("none but {}", known.join(", ")), name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_strange_or_doubled_ones_are_named() {
        let mut query = Query::parse(Some("config=%7B%22a%22%3A+1%7D&x=")).unwrap();
        assert_eq!(query.take("config").as_deref(), Some("{\"a\": 1}"));
        assert_eq!(query.end(&["config"]), Err(Problem::field("query", "none but config", "x")));
        assert_eq!(Query::parse(Some("a=1&a=2")).unwrap_err(), Problem::field("query", "each field once", "a twice"));
        assert_eq!(Query::parse(None).unwrap().end(&[]), Ok(()));
    }
}

//! Table of paths, methods and parameters. What is not in the table is not served, and `openapi.json`
//! describes exactly what is in it.

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Get,
    Head,
    Put,
    Delete,
    Increment,
    List,
    Batch,
    Watch,
    Document,
}

/// Method of a path.
#[derive(Debug)]
pub(super) struct Operation {
    pub method: &'static str,
    pub action: Action,
    /// Names of the parameters after `?`.
    pub parameters: &'static [&'static str],
    /// Names of the headers that change the answer.
    #[cfg_attr(not(test), allow(dead_code))]
    pub headers: &'static [&'static str],
}

/// Path with its methods.
#[derive(Debug)]
pub(super) struct Route {
    /// `{key}` stands for a key.
    pub path: &'static str,
    pub operations: &'static [Operation],
}

const CONDITIONS: &[&str] = &["If-Match", "If-None-Match"];
const CONDITIONS_AND_TTL: &[&str] = &["If-Match", "If-None-Match", "Stele-TTL"];

const fn operation(
    method: &'static str,
    action: Action,
    parameters: &'static [&'static str],
    headers: &'static [&'static str],
) -> Operation {
    Operation { method, action, parameters, headers }
}

/// Path of a pair, without its key. With nothing more the key is a parameter.
const PAIR: &str = "/v1/kv/";

/// All paths.
pub(super) static ROUTES: [Route; 6] = [
    Route {
        path: "/v1/kv/{key}",
        operations: &[
            operation("GET", Action::Get, &["family"], CONDITIONS),
            operation("HEAD", Action::Head, &["family"], CONDITIONS),
            operation("PUT", Action::Put, &["family"], CONDITIONS_AND_TTL),
            operation("DELETE", Action::Delete, &["family"], CONDITIONS),
            operation("POST", Action::Increment, &["family", "increment"], &[]),
        ],
    },
    Route {
        path: "/v1/kv/",
        operations: &[
            operation("GET", Action::Get, &["family", "key64"], CONDITIONS),
            operation("HEAD", Action::Head, &["family", "key64"], CONDITIONS),
            operation("PUT", Action::Put, &["family", "key64"], CONDITIONS_AND_TTL),
            operation("DELETE", Action::Delete, &["family", "key64"], CONDITIONS),
            operation("POST", Action::Increment, &["family", "key64", "increment"], &[]),
        ],
    },
    Route {
        path: "/v1/kv",
        operations: &[operation(
            "GET",
            Action::List,
            &[
                "family",
                "prefix",
                "prefix64",
                "start",
                "start64",
                "end",
                "end64",
                "limit",
                "after",
                "keys_only",
            ],
            &[],
        )],
    },
    Route { path: "/v1/batch", operations: &[operation("POST", Action::Batch, &["family"], &[])] },
    Route {
        path: "/v1/watch",
        operations: &[operation(
            "GET",
            Action::Watch,
            &[
                "family",
                "prefix",
                "prefix64",
                "start",
                "start64",
                "end",
                "end64",
                "after",
                "resolved",
                "old_values",
            ],
            &["Last-Event-ID"],
        )],
    },
    Route { path: "/v1/openapi.json", operations: &[operation("GET", Action::Document, &[], &[])] },
];

impl Route {
    pub(super) fn operation(&self, method: &str) -> Option<&'static Operation> {
        self.operations.iter().find(|operation| operation.method == method)
    }

    /// Returns the methods of the path, as the header `Allow` has them.
    pub(super) fn allow(&self) -> String {
        let methods: Vec<&str> = self.operations.iter().map(|it| it.method).collect();
        methods.join(", ")
    }
}

/// Returns the route of a path, with what the path has in place of `{key}`, still encoded.
pub(super) fn find(path: &str) -> Option<(&'static Route, Option<&str>)> {
    let key = path.strip_prefix(PAIR).filter(|key| !key.is_empty());
    let [of_pair, others @ ..] = &ROUTES;
    match key {
        Some(key) => Some((of_pair, Some(key))),
        None => others.iter().find(|route| route.path == path).map(|route| (route, None)),
    }
}

/// Returns whether a request names one key.
pub(super) fn has_key(action: Action) -> bool {
    match action {
        Action::Get | Action::Head | Action::Put | Action::Delete | Action::Increment => true,
        Action::List | Action::Batch | Action::Watch | Action::Document => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::DOCUMENT;
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Returns the object that a parameter is, or refers to.
    fn resolved<'a>(document: &'a Value, parameter: &'a Value) -> &'a Value {
        match parameter["$ref"].as_str() {
            Some(place) => document.pointer(place.trim_start_matches('#')).unwrap(),
            None => parameter,
        }
    }

    fn named(document: &Value, operation: &Value, kind: &str) -> BTreeSet<String> {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let of_kind =
            parameters.iter().map(|it| resolved(document, it)).filter(|it| it["in"] == kind);
        of_kind.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_document_describes_all_routes_and_parameters_and_no_others() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1."));
        let paths = document["paths"].as_object().unwrap();
        let known: BTreeSet<&str> = ROUTES.iter().map(|route| route.path).collect();
        assert_eq!(paths.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
        for route in &ROUTES {
            let described = paths[route.path].as_object().unwrap();
            let methods: BTreeSet<String> =
                described.keys().map(|method| method.to_uppercase()).collect();
            assert_eq!(methods, route.operations.iter().map(|it| it.method.to_owned()).collect());
            for operation in route.operations {
                let described = &described[&operation.method.to_lowercase()];
                let place = format!("{} {}", operation.method, route.path);
                let of = |kind| named(&document, described, kind);
                assert_eq!(of("query"), set(operation.parameters), "{place}");
                assert_eq!(of("header"), set(operation.headers), "{place}");
                let in_path = if route.path.contains("{key}") { &["key"][..] } else { &[] };
                assert_eq!(of("path"), set(in_path), "{place}");
                let answers = described["responses"].as_object().unwrap();
                assert!(!answers.is_empty(), "{place}");
                assert!(described["operationId"].is_string(), "{place}");
            }
        }
    }

    #[test]
    fn references_of_the_document_exist() {
        fn each(document: &Value, value: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(place) = fields.get("$ref").and_then(Value::as_str) {
                        let found = document.pointer(place.trim_start_matches('#'));
                        assert!(found.is_some(), "{place}");
                    }
                    fields.values().for_each(|value| each(document, value));
                }
                Value::Array(values) => values.iter().for_each(|value| each(document, value)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        each(&document, &document);
    }

    #[test]
    fn a_path_has_one_route_and_its_key_is_everything_after_the_prefix() {
        fn found(path: &str) -> Option<(&str, Option<&str>)> {
            find(path).map(|(route, key)| (route.path, key))
        }
        assert_eq!(found("/v1/kv"), Some(("/v1/kv", None)));
        assert_eq!(found("/v1/kv/"), Some(("/v1/kv/", None)));
        for key in ["a", "a/b", "/a", "a/", "..", "a/../b", "%2F", "{key}"] {
            assert_eq!(found(&format!("/v1/kv/{key}")), Some(("/v1/kv/{key}", Some(key))));
        }
        assert_eq!(found("/v1/batch"), Some(("/v1/batch", None)));
        for path in ["/v1/kvs", "/v1/kv{key}", "/v1/batch/", "/v1"] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}

//! The methods that a running part of Nectary offers, by name.
//!
//! Owns: the table of methods, and answering one request line. Leaves to others: the connections.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use serde_json::{Value, json};

use super::message::{ControlFault, ControlRequest, ControlResponse, FaultKind};
use crate::PartStatus;
use crate::descriptors::with_refused;

type Answer = Pin<Box<dyn Future<Output = Result<Value, ControlFault>> + Send>>;

struct ControlMethod {
    description: &'static str,
    call: Box<dyn Fn(Value) -> Answer + Send + Sync>,
}

/// The methods of one part.
///
/// ```
/// use nectary_host::{ControlMethods, PartStatus};
/// use serde_json::json;
///
/// let mut methods = ControlMethods::new();
/// methods.status(|| PartStatus::healthy("proxy", "127.0.0.1:8080"));
/// methods.register("echo", "gives its parameters back", |params| async move { Ok(json!({ "echo": params })) });
/// ```
#[derive(Default)]
pub struct ControlMethods {
    table: BTreeMap<&'static str, ControlMethod>,
}

impl std::fmt::Debug for ControlMethods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.table.keys()).finish()
    }
}

impl ControlMethods {
    /// Starts with the built-in method `methods` and no other.
    pub fn new() -> ControlMethods {
        ControlMethods::default()
    }

    /// Adds a method, or replaces the method of the same name. `call` gets the request's parameters, or null if the
    /// request has none.
    ///
    /// The calls of several clients run concurrently. A call under way is dropped when the server stops.
    pub fn register<F>(
        &mut self,
        name: &'static str,
        description: &'static str,
        call: impl Fn(Value) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Value, ControlFault>> + Send + 'static,
    {
        let call = Box::new(move |params| -> Answer { Box::pin(call(params)) });
        self.table.insert(name, ControlMethod { description, call });
    }

    /// Adds the method `status`, which every part has. It also shows whether the process refused connections lately.
    pub fn status(&mut self, status: impl Fn() -> PartStatus + Send + Sync + 'static) {
        self.register("status", "state, what is wrong, what to do", move |_| {
            let answer = serde_json::to_value(with_refused(status()));
            async move { answer.map_err(|error| ControlFault::new(FaultKind::Failed, error.to_string(), "")) }
        });
    }

    /// Answers one request line.
    pub(crate) async fn answer(&self, line: &[u8]) -> ControlResponse {
        let request: ControlRequest = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(error) => {
                let remedy = r#"send one line like {"method":"status"}"#;
                return ControlResponse::Error(ControlFault::new(
                    FaultKind::Malformed,
                    format!("not a request: {error}"),
                    remedy,
                ));
            }
        };
        if request.method == "methods" {
            let list = self.table.iter().map(|(name, method)| json!({"name": name, "does": method.description}));
            return ControlResponse::Ok(list.collect());
        }
        let Some(method) = self.table.get(request.method.as_str()) else {
            let known: Vec<&str> = self.table.keys().copied().collect();
            let message = format!("there is no method {:?}", request.method);
            let remedy = format!("known are: methods, {}", known.join(", "));
            return ControlResponse::Error(ControlFault::new(FaultKind::UnknownMethod, message, remedy));
        };
        match (method.call)(request.params).await {
            Ok(value) => ControlResponse::Ok(value),
            Err(fault) => ControlResponse::Error(fault),
        }
    }
}

//! Record of an administrative call: begun when it may be made, written when it ends.

use super::{Audit, Caller, Line, address};
use crate::access::{Principal, first_caller};
use parking_lot::Mutex;
use std::net::SocketAddr;
use tonic::Code;

/// An administrative call that changes something.
///
/// Invariant: each such call is recorded once, also if its caller does not wait for the answer, and with neither keys nor
/// values.
/// Tests: `an_administrative_call_is_recorded_with_its_outcome_and_without_values`.
#[derive(Debug)]
pub struct AdminCall {
    audit: Audit,
    caller: Principal,
    peer: Option<SocketAddr>,
    path: &'static str,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    arguments: String,
    on_behalf_of: String,
    /// `None` while the call is executed.
    code: Option<Code>,
}

impl AdminCall {
    pub(in crate::access) fn new(
        audit: Audit,
        caller: Principal,
        peer: Option<SocketAddr>,
        path: &'static str,
    ) -> Self {
        Self { audit, caller, peer, path, parts: Mutex::default() }
    }

    /// Describes the call: regions, stores and names of settings. If a node forwards the call of this task's
    /// first caller, it is made on behalf of that one.
    pub fn describe(&self, arguments: String) {
        let mut parts = self.parts.lock();
        parts.arguments = arguments;
        let forwarded = first_caller().filter(|caller| caller.via.is_some());
        parts.on_behalf_of = forwarded.map(|caller| caller.first.to_string()).unwrap_or_default();
    }

    /// Sets the outcome.
    pub fn end(&self, code: Code) {
        self.parts.lock().code = Some(code);
    }
}

impl Drop for AdminCall {
    fn drop(&mut self) {
        let Some(shared) = &self.audit.0 else { return };
        let parts = self.parts.get_mut();
        let (outcome, reason) = match parts.code {
            Some(Code::Ok) => ("ok", String::new()),
            // Texts of errors may show the value of a setting.
            Some(code) => ("failed", format!("{code:?}")),
            None => ("unknown", "the caller did not wait for the answer".to_owned()),
        };
        shared.push(&Line {
            event: "administration",
            caller: Some(&Caller::of(&self.caller)),
            peer: address(self.peer),
            on_behalf_of: super::cut(&parts.on_behalf_of),
            call: self.path,
            arguments: super::cut(&parts.arguments),
            outcome,
            reason: &reason,
            count: None,
        });
    }
}

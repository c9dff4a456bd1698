//! Descriptions of the calls that change something, for the audit log: regions, stores and names, never keys or values.

use crate::access::AdminCall;
use crate::config::SETTINGS;
use crate::placement::PlacementService;
use std::sync::Arc;
use stele_proto::stele::control::v1::*;
use tonic::Request;

/// Request that changes something.
pub(super) trait DescribedChange {
    /// Describes it in a few words.
    ///
    /// Invariant: a description holds no key and no value, and of the texts in a request only names of
    /// settings that exist, of grants and of nodes.
    /// Tests: `a_description_has_neither_keys_nor_values`.
    fn arguments(&self) -> String;
}

/// Notes in the audit log what the request is about.
pub(super) fn note<T: DescribedChange>(request: &Request<T>) {
    if let Some(call) = request.extensions().get::<Arc<AdminCall>>() {
        call.describe(request.get_ref().arguments());
    }
}

impl DescribedChange for AdmitRequest {
    fn arguments(&self) -> String {
        match (self.node.as_str(), self.store_id) {
            ("", _) => "a token to join".to_owned(),
            (node, 0) => format!("node {node} may join"),
            (node, store) => format!("store {store} is of node {node}"),
        }
    }
}

impl DescribedChange for AccessGrantRequest {
    fn arguments(&self) -> String {
        let name = self.grant.as_ref().map(|grant| &grant.name[..]);
        format!("grant {}", name.unwrap_or_default())
    }
}

impl DescribedChange for AccessRevokeRequest {
    fn arguments(&self) -> String {
        format!("grant {}", self.name)
    }
}

impl DescribedChange for CancelOperatorRequest {
    fn arguments(&self) -> String {
        match self.operator_id {
            0 => format!("operator of region {}", self.region_id),
            operator => format!("operator {operator}"),
        }
    }
}

impl DescribedChange for TransferRequest {
    fn arguments(&self) -> String {
        format!("region {} to store {}", self.region_id, self.to_store)
    }
}

impl DescribedChange for MoveRequest {
    fn arguments(&self) -> String {
        format!(
            "region {} from store {} to store {}",
            self.region_id, self.from_store, self.to_store
        )
    }
}

impl DescribedChange for SplitRequest {
    fn arguments(&self) -> String {
        match self.keys.len() {
            0 => format!("region {} by size", self.region_id),
            keys => format!("region {} at {keys} keys", self.region_id),
        }
    }
}

impl DescribedChange for MergeRequest {
    fn arguments(&self) -> String {
        format!("region {} into region {}", self.source_region, self.target_region)
    }
}

impl DescribedChange for SetStoreStateRequest {
    fn arguments(&self) -> String {
        let action = match self.action() {
            StoreAction::Unspecified => "no action",
            StoreAction::Drain => "drain",
            StoreAction::Remove => "remove",
            StoreAction::Cancel => "cancel",
            StoreAction::Lost => "lost",
        };
        format!("store {}: {action}", self.store_id)
    }
}

impl DescribedChange for RecoverReplicaRequest {
    fn arguments(&self) -> String {
        let lost: Vec<String> = self.lost_stores.iter().map(u64::to_string).collect();
        format!(
            "region {} of store {}, lost stores {}",
            self.region_id,
            self.store_id,
            lost.join(" ")
        )
    }
}

impl DescribedChange for KeepRunRequest {
    fn arguments(&self) -> String {
        format!("store {}", self.store_id)
    }
}

impl DescribedChange for FinalizeRequest {
    fn arguments(&self) -> String {
        "the level of the cluster".to_owned()
    }
}

impl DescribedChange for SetConfigRequest {
    fn arguments(&self) -> String {
        let is_known = PlacementService::is_setting(&self.key)
            || SETTINGS.iter().any(|setting| setting.key == self.key);
        // bug server.audit_shows_names: `is_known` is `true`
        match is_known {
            true => format!("setting {}", self.key),
            false => "a setting that does not exist".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_neither_keys_nor_values() {
        let secret = "secret".to_owned();
        let set = |key: &str| SetConfigRequest {
            key: key.to_owned(),
            value: secret.clone(),
            ..Default::default()
        };
        assert_eq!(set("balance").arguments(), "setting balance");
        assert_eq!(set("tls_key").arguments(), "setting tls_key");
        assert_eq!(set(&secret).arguments(), "a setting that does not exist");
        let keys = vec![secret.into_bytes().into()];
        let split = SplitRequest { region_id: 2, keys, ..Default::default() };
        assert_eq!(split.arguments(), "region 2 at 1 keys");
    }
}

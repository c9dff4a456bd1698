//! Grants: administrators change them, nodes get them in the answers to their reports.

use super::forward::leader_calls;
use super::{PlacementService, refused};
use std::sync::Arc;
use stele_placement::{Cluster, Grant, GrantLimits, Grants, Permissions};
use stele_proto::stele::control::v1 as wire;
use stele_proto::stele::control::v1::{
    AccessChangeResponse, AccessGrantRequest, AccessListRequest, AccessListResponse,
    AccessRevokeRequest,
};
use stele_types::{Error, Result};
use tonic::Status;

leader_calls! {
    /// Lists the grants, and the nodes on which they are not in force.
    access_list, access_list(AccessListRequest) -> AccessListResponse = access_list_here;
    /// Adds or replaces a grant.
    access_grant, access_grant(AccessGrantRequest) -> AccessChangeResponse = access_grant_here;
    /// Ends a grant.
    access_revoke, access_revoke(AccessRevokeRequest) -> AccessChangeResponse = access_revoke_here;
}

impl PlacementService {
    async fn access_list_here(
        self: &Arc<Self>,
        _: AccessListRequest,
    ) -> Result<AccessListResponse, Status> {
        self.read_state(|state| AccessListResponse {
            access: Some(encode(state.cluster.grants())),
            behind: state.cluster.nodes_behind_access().into_iter().collect(),
        })
        .await
    }

    async fn access_grant_here(
        self: &Arc<Self>,
        request: AccessGrantRequest,
    ) -> Result<AccessChangeResponse, Status> {
        let grant = request.grant.ok_or_else(|| Status::invalid_argument("no grant"))?;
        let grant = grant_of(&grant).and_then(|grant| grant.check().map(|()| grant));
        let grant = grant.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let changed = self.change_access(move |cluster| cluster.plan_grant(grant)).await;
        self.or_retry_later(changed).await
    }

    async fn access_revoke_here(
        self: &Arc<Self>,
        request: AccessRevokeRequest,
    ) -> Result<AccessChangeResponse, Status> {
        let AccessRevokeRequest { name, turn_off, .. } = request;
        self.change_access(move |cluster| cluster.plan_revocation(&name, turn_off)).await
    }

    async fn change_access(
        self: &Arc<Self>,
        plan: impl FnOnce(&Cluster) -> Result<Vec<stele_placement::PairChange>> + Send + Sync + 'static,
    ) -> Result<AccessChangeResponse, Status> {
        let plan = move |cluster: &Cluster, _| Ok(((), plan(cluster).map_err(refused)?));
        self.commit_decision(plan, |(), state| AccessChangeResponse {
            version: state.cluster.grants().version,
        })
        .await
    }
}

/// Encodes all grants.
pub(super) fn encode(grants: &Grants) -> wire::AccessGrants {
    wire::AccessGrants {
        version: grants.version,
        grants: grants.by_name.values().map(wire_grant).collect(),
    }
}

/// Decodes all grants. Fails with `Invalid` if one of them does not decode.
///
/// Invariant: grants of which one is not understood are not taken over: without it, access could be off.
pub(crate) fn decode(access: &wire::AccessGrants) -> Result<Grants> {
    let by_name = access.grants.iter().map(|grant| {
        let grant = grant_of(grant)?;
        Ok((grant.name.clone(), grant))
    });
    Ok(Grants { version: access.version, by_name: by_name.collect::<Result<_>>()? })
}

fn wire_grant(grant: &Grant) -> wire::AccessGrant {
    let GrantLimits { operations_per_second, bytes_per_second, connections } = grant.limits;
    wire::AccessGrant {
        name: grant.name.clone(),
        permissions: grant.permissions.bits(),
        prefixes: grant.prefixes.clone(),
        token_hash: grant.token.map(|hash| hash.to_vec().into()).unwrap_or_default(),
        operations_per_second,
        bytes_per_second,
        connections,
    }
}

fn grant_of(grant: &wire::AccessGrant) -> Result<Grant> {
    let token = match &grant.token_hash[..] {
        [] => None,
        hash => {
            let hash = hash.try_into();
            Some(hash.map_err(|_| Error::invalid("the hash of a token has 32 bytes"))?)
        }
    };
    Ok(Grant {
        name: grant.name.clone(),
        permissions: Permissions::of_bits(grant.permissions),
        prefixes: grant.prefixes.clone(),
        token,
        limits: GrantLimits {
            operations_per_second: grant.operations_per_second,
            bytes_per_second: grant.bytes_per_second,
            connections: grant.connections,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn grants_survive_the_wire_and_a_malformed_one_refuses_all() {
        let limits = GrantLimits { operations_per_second: 1, bytes_per_second: 2, connections: 3 };
        let app = Grant {
            name: "app".to_owned(),
            permissions: Permissions::READ,
            prefixes: vec![Bytes::from_static(b"a/")],
            limits,
            ..Grant::default()
        };
        let token = Grant { name: "token:ci".to_owned(), token: Some([7; 32]), ..app.clone() };
        let by_name = [app, token].map(|grant| (grant.name.clone(), grant)).into();
        let grants = Grants { version: 9, by_name };
        let mut sent = encode(&grants);
        assert_eq!(decode(&sent).unwrap(), grants);
        sent.grants[1].token_hash = Bytes::from_static(b"short");
        assert!(decode(&sent).is_err());
    }
}

//! Nodes that answer reports over TLS as if they led.

use super::super::{LostQuorum, PairChange, PlacementService, System};
use super::fake::{CLUSTER, TIMES, heartbeat};
use crate::access::{Access, Listener};
use crate::port::PortOptions;
use crate::port::secured_tests::Place;
use crate::port::tests::{Port, hasty, start_with};
use crate::transport::BoxFuture;
use crate::transport::tests::common::Book;
use axum::Router;
use axum::extract::Request;
use axum::routing::post;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use stele_proto::stele::control::v1::{HeartbeatRequest, HeartbeatResponse};
use stele_types::{Error, Result, StoreId, Term};
use tonic::{Code, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// Node n1 without a replica of the placement region. It takes the node at an address for the leader.
struct Asking {
    access: Access,
    leader: Mutex<String>,
}

impl System for Asking {
    fn leader_term(&self) -> Option<Term> {
        None
    }

    fn load(&self, _: Term) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>>> {
        Box::pin(async { Err(Error::Busy("it does not lead".to_owned())) })
    }

    fn propose(&self, _: Term, _: Vec<PairChange>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Err(Error::Busy("it does not lead".to_owned())) })
    }

    fn confirm(&self, _: Term) -> BoxFuture<'static, Result<()>> {
        Box::pin(async { Err(Error::Busy("it does not lead".to_owned())) })
    }

    fn leader_address(&self) -> Option<String> {
        Some(self.leader.lock().clone())
    }

    fn own_address(&self) -> String {
        "127.0.0.1:1".to_owned()
    }

    fn owner(&self, store: StoreId) -> Option<String> {
        Some(format!("n{store}"))
    }

    fn access(&self) -> Access {
        self.access.clone()
    }

    fn nodes(&self) -> Vec<String> {
        Vec::new()
    }

    fn lost_quorum(&self) -> Option<LostQuorum> {
        None
    }
}

/// Starts a node with this certificate that answers reports as the leader of a term.
async fn answering(access: Access, term: u64, stores: &'static [u64]) -> Port {
    let answer = move |request: Request| async move {
        let service = service_fn(move |_: tonic::Request<HeartbeatRequest>| async move {
            Ok::<_, Status>(Response::new(HeartbeatResponse {
                cluster_id: CLUSTER.0,
                options_version: term,
                placement_stores: stores.to_vec(),
                ..HeartbeatResponse::default()
            }))
        });
        let codec = ProstCodec::<HeartbeatResponse, HeartbeatRequest>::default();
        tonic::server::Grpc::new(codec).unary(service, request).await
    };
    let more = Router::new().route("/stele.control.v1.Control/Heartbeat", post(answer));
    let options = PortOptions { access, ..hasty() };
    start_with(&Arc::new(Book::default()), 1, options, (Listener::ONLY, more)).await
}

#[tokio::test]
async fn a_member_without_a_replica_of_the_placement_region_answers_no_report() {
    let place = Place::new();
    let node = |name| place.node("prod", name, "required");
    let (access, second) = (node("n1"), node("n2"));
    let leader = answering(second.clone(), 5, &[2]).await;
    let other = answering(node("n3"), 99, &[3]).await;
    let deposed = answering(second, 4, &[2]).await;
    let system = Arc::new(Asking { access: access.clone(), leader: Mutex::default() });
    let service = PlacementService::new(CLUSTER, TIMES, system.clone(), None);
    let report = async |to: &Port| {
        system.leader.lock().clone_from(&to.address);
        service.report(heartbeat(1, 1, 1, vec![])).await
    };
    assert_eq!(report(&leader).await.unwrap().options_version, 5);
    for (to, text) in [(&other, "node n3 is refused"), (&deposed, "in term 4, after term 5")] {
        let refused = report(to).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "it asks another node");
        assert!(refused.message().contains(text), "{refused:?}");
    }
    assert_eq!(report(&leader).await.unwrap().options_version, 5);
    let refused = access.tls().unwrap().refused_nodes();
    assert_eq!(refused.get("answer"), Some(&2), "{refused:?}");
}

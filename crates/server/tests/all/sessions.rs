//! Requests of sessions against a whole node.

use crate::common::{LIMIT, config, start};
use bytes::Bytes;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stele_proto::kvrpcpb::{Context, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::kv::v1::kv_client::KvClient;
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_proto::stele::kv::v1::{
    CompareAndSwap, Delete, GetAndDelete, Increment, ModifyInSessionRequest, ModifyRequest,
    ModifyResponse, NumberedPut, Put, PutInSessionRequest, Refusal, SessionRequest,
};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::node::Node;
use tonic::transport::Channel;

struct Served {
    node: Node,
    channel: Channel,
    context: Context,
}

async fn served(dir: &tempfile::TempDir) -> Served {
    let node = start(config(&[dir.path().join("a")], &[])).await;
    let url = format!("http://{}", node.ready.address);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let started = Instant::now();
    loop {
        let request = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
        let answer = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = answer.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            let context = Context {
                region_id: region.id,
                region_epoch: region.region_epoch,
                peer: Some(leader),
                request_source: stele_proto::REQUEST_SOURCE.to_owned(),
                ..Context::default()
            };
            return Served { node, channel, context };
        }
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Served {
    /// Sends an attempt until the node knows the level and the time of its cluster.
    async fn attempt(&self, number: u64, expires_at_s: u64, change: Change) -> ModifyResponse {
        let key = Bytes::from("k");
        let (context, change) = (None, Some(change));
        let modification = ModifyRequest { context, cf: String::new(), key, change };
        let request = ModifyInSessionRequest {
            context: Some(self.context.clone()),
            modification: Some(modification),
            session: Some(SessionRequest { session: 9, number, expires_at_s }),
        };
        let started = Instant::now();
        loop {
            let sent = KvClient::new(self.channel.clone()).modify_in_session(request.clone()).await;
            let response = sent.unwrap().into_inner();
            let Some(error) = &response.region_error else { return response };
            assert!(error.server_is_busy.is_some() && started.elapsed() < LIMIT, "{error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn put(&self, value: &'static str) {
        let request = RawPutRequest {
            context: Some(self.context.clone()),
            key: Bytes::from("k"),
            value: Bytes::from(value),
            ..RawPutRequest::default()
        };
        let put = TikvClient::new(self.channel.clone()).raw_put(request).await.unwrap();
        assert!(put.into_inner().region_error.is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_a_session_takes_effect_once() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let expires_at_s = now_s() + 300;
    let increment = || Change::Increment(Increment { by: 5 });
    for _ in 0..3 {
        assert_eq!(served.attempt(1, expires_at_s, increment()).await.number, 5);
    }
    assert_eq!(served.attempt(2, expires_at_s, increment()).await.number, 10);
    let swap = |expected: &'static str| {
        let (expected, value) = (Some(Bytes::from(expected)), Some(Bytes::from("x")));
        Change::CompareAndSwap(CompareAndSwap { expected, value, ttl: 0 })
    };
    for _ in 0..2 {
        let swapped = served.attempt(3, expires_at_s, swap("10")).await;
        assert_eq!((swapped.succeeded, swapped.previous.as_deref()), (true, Some(&b"10"[..])));
        let refused = served.attempt(4, expires_at_s, swap("10")).await;
        assert_eq!((refused.succeeded, refused.previous.as_deref()), (false, Some(&b"x"[..])));
    }
    let put = || Change::Put(Put { value: Bytes::from("1"), ttl: 0 });
    served.attempt(5, expires_at_s, put()).await;
    served.attempt(6, expires_at_s, Change::Delete(Delete {})).await;
    served.put("other").await;
    served.attempt(5, expires_at_s, put()).await;
    served.attempt(6, expires_at_s, Change::Delete(Delete {})).await;
    for _ in 0..2 {
        let taken = served.attempt(7, expires_at_s, Change::GetAndDelete(GetAndDelete {})).await;
        assert_eq!(taken.previous.as_deref(), Some(&b"other"[..]));
    }
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_gets_the_clusters_time() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let increment = || Change::Increment(Increment { by: 5 });
    for expires_at_s in [1, now_s() + 7_200] {
        let late = served.attempt(1, expires_at_s, increment()).await;
        assert_eq!((late.refusal(), late.number), (Refusal::Deadline, 0));
        assert!(late.cluster_time_s.abs_diff(now_s()) <= 5, "{late:?}");
    }
    assert_eq!(served.attempt(1, now_s() + 60, increment()).await.number, 5);
    served.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn puts_of_many_keys_take_effect_once_each() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(&dir).await;
    let expires_at_s = now_s() + 300;
    // The node then knows the level and the time of its cluster.
    served.attempt(1, expires_at_s, Change::Delete(Delete {})).await;
    let put = |key: &'static str, value: &'static str, number| NumberedPut {
        key: Bytes::from(key),
        put: Some(Put { value: Bytes::from(value), ttl: 0 }),
        number,
    };
    let send = async |puts: Vec<NumberedPut>, expires_at_s| {
        let context = Some(served.context.clone());
        let request =
            PutInSessionRequest { context, puts, session: 9, expires_at_s, ..Default::default() };
        let sent = KvClient::new(served.channel.clone()).put_in_session(request).await;
        sent.unwrap().into_inner()
    };
    let first = || vec![put("k", "1", 2), put("l", "1", 3)];
    assert_eq!(send(first(), expires_at_s).await, ModifyResponse::default());
    served.put("other").await;
    // A repetition in another part, with one key that is new.
    let again = vec![put("l", "1", 3), put("k", "1", 2), put("m", "1", 4)];
    assert_eq!(send(again, expires_at_s).await, ModifyResponse::default());
    let taken = served.attempt(5, expires_at_s, Change::GetAndDelete(GetAndDelete {})).await;
    assert_eq!(taken.previous.as_deref(), Some(&b"other"[..]), "the repetition changed nothing");
    let late = send(vec![put("k", "2", 6)], 1).await;
    assert_eq!(late.refusal(), Refusal::Deadline);
    assert!(late.cluster_time_s.abs_diff(now_s()) <= 5, "{late:?}");
    let empty = NumberedPut { key: Bytes::from("k"), ..NumberedPut::default() };
    let invalid = send(vec![put("n", "1", 7), empty], expires_at_s).await;
    assert!(invalid.region_error.unwrap().message.contains("no value"), "a put without a value");
    served.node.stop().await;
}

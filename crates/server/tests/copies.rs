//! How often a node copies a value on its way from the socket to the device: each copy needs memory of
//! the value's length, and what a value is the first of its length to need is allocated then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use bytes::Bytes;
use common::{config, until};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::node::Node;
use tonic::transport::Channel;

const VALUE_BYTES: usize = 3 << 20;
/// Shorter pieces of memory are not the value's.
const LONG_BYTES: usize = 64 << 10;

/// The system's memory; long pieces that the node asks for are counted while that is wanted.
struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static LONG_BYTES_TAKEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The client's thread, whose memory does not count.
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: usize) {
    let is_client = IS_CLIENT.try_with(Cell::get).unwrap_or(true);
    if bytes >= LONG_BYTES && !is_client && IS_COUNTING.load(Ordering::Relaxed) {
        LONG_BYTES_TAKEN.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

// SAFETY: every call is handed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps to what `GlobalAlloc` asks.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the same.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static MEMORY: Counting = Counting;

/// Long memory that a node takes while `f` runs, in values.
async fn values_taken<T>(f: impl Future<Output = T>) -> (T, f64) {
    LONG_BYTES_TAKEN.store(0, Ordering::SeqCst);
    IS_COUNTING.store(true, Ordering::SeqCst);
    let done = f.await;
    IS_COUNTING.store(false, Ordering::SeqCst);
    (done, LONG_BYTES_TAKEN.load(Ordering::SeqCst) as f64 / VALUE_BYTES as f64)
}

async fn context(channel: &Channel) -> Context {
    loop {
        let request = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await.unwrap().into_inner();
        if let (Some(region), Some(leader)) = (found.region, found.leader) {
            return Context {
                region_id: region.id,
                region_epoch: region.region_epoch,
                peer: Some(leader),
                ..Context::default()
            };
        }
    }
}

async fn put(channel: &Channel, context: &Context, key: &'static str, bytes: usize) {
    let request = RawPutRequest {
        context: Some(context.clone()),
        key: Bytes::from(key),
        value: vec![7; bytes].into(),
        ..Default::default()
    };
    let answer = TikvClient::new(channel.clone()).raw_put(request).await.unwrap().into_inner();
    assert!(answer.region_error.is_none() && answer.error.is_empty(), "{answer:?}");
}

async fn get(channel: &Channel, context: &Context, key: &'static str) -> Bytes {
    let context = Some(context.clone());
    let request = RawGetRequest { context, key: Bytes::from(key), ..Default::default() };
    TikvClient::new(channel.clone()).raw_get(request).await.unwrap().into_inner().value
}

#[test]
fn a_value_is_copied_three_times_from_the_socket_to_the_device_and_once_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = tokio::runtime::Runtime::new().unwrap();
    let config = config(&[dir.path().join("a")], &[]);
    let started = std::thread::spawn({
        let handle = server.handle().clone();
        move || handle.block_on(Node::start(config)).unwrap()
    });
    let node = started.join().unwrap();
    IS_CLIENT.set(true);
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (puts, gets) = client.block_on(async {
        until(&node.ready.address, "/readyz", |status, _| status == 200).await;
        let url = format!("http://{}", node.ready.address);
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        let context = context(&channel).await;
        put(&channel, &context, "small", 100).await;
        let (_, puts) = values_taken(put(&channel, &context, "large", VALUE_BYTES)).await;
        let (value, gets) = values_taken(get(&channel, &context, "large")).await;
        assert_eq!(value, vec![7; VALUE_BYTES]);
        (puts, gets)
    });
    println!("memory taken, in values: put {puts:.2}, get {gets:.2}");
    assert!((2.5..3.6).contains(&puts), "a put takes memory for {puts:.2} values");
    assert!((0.9..1.6).contains(&gets), "a get takes memory for {gets:.2} values");
    IS_CLIENT.set(false);
    server.block_on(node.stop());
}

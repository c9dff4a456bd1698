//! Copies that a node makes of a value on its way from the socket to the device and back. Each copy
//! needs memory of the value's length, and a value that is the first of its length has all of it
//! allocated.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "all/common/mod.rs"]
mod common;

use bytes::Bytes;
use common::{config, start, until};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::tikvpb::tikv_client::TikvClient;
use tonic::transport::Channel;

const VALUE_BYTES: usize = 3 << 20;

/// Allocator that counts blocks large enough for the value while counting is on.
struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static PIECES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Set on the client's thread; its allocations do not count.
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: usize) {
    let is_client = IS_CLIENT.try_with(Cell::get).unwrap_or(true);
    if bytes >= VALUE_BYTES && !is_client && IS_COUNTING.load(Ordering::Relaxed) {
        PIECES.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
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

async fn copies<T>(f: impl Future<Output = T>) -> (T, u64) {
    PIECES.store(0, Ordering::SeqCst);
    IS_COUNTING.store(true, Ordering::SeqCst);
    let done = f.await;
    IS_COUNTING.store(false, Ordering::SeqCst);
    (done, PIECES.load(Ordering::SeqCst))
}

async fn context(channel: &Channel) -> Context {
    loop {
        let request = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
        let found = PdClient::new(channel.clone()).get_region(request).await;
        if let Ok(found) = found.map(tonic::Response::into_inner)
            && let (Some(region), Some(leader)) = (found.region, found.leader)
        {
            return Context {
                region_id: region.id,
                region_epoch: region.region_epoch,
                peer: Some(leader),
                ..Context::default()
            };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
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
        move || handle.block_on(start(config))
    });
    let node = started.join().unwrap();
    IS_CLIENT.set(true);
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Maintenance may read a value at the same moment, so of several gets the least counts.
    let (puts, gets) = client.block_on(async {
        until(&node.ready.address, "/readyz", |status, _| status == 200).await;
        let url = format!("http://{}", node.ready.address);
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        let context = context(&channel).await;
        put(&channel, &context, "small", 100).await;
        let (mut puts, mut gets) = (Vec::new(), Vec::new());
        for key in ["large 1", "large 2", "large 3"] {
            puts.push(copies(put(&channel, &context, key, VALUE_BYTES)).await.1);
            let (value, copies) = copies(get(&channel, &context, key)).await;
            assert_eq!(value, vec![7; VALUE_BYTES]);
            gets.push(copies);
        }
        (puts, gets)
    });
    assert_eq!(puts[0], 3, "the message, the command, and the frame that is written");
    assert_eq!(gets.iter().min(), Some(&1), "the buffer that is read: {gets:?}");
    IS_CLIENT.set(false);
    server.block_on(node.stop());
}

//! Faulty network: a proxy in front of a node that slows, holds or damages the bytes.

use super::super::hello::Lane;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Fate of bytes on the way to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    /// All pass.
    Clear,
    /// This many pass in a millisecond.
    Slow(usize),
    /// None pass in either direction; connections stay open.
    Held,
    /// None pass to the node.
    HeldThere,
    /// None pass from the node.
    HeldBack,
    /// One of this many is damaged.
    Damaged(usize),
}

pub(super) struct Proxy {
    pub address: String,
    /// Faults of the urgent, data and bulk lane.
    weather: Arc<Mutex<[Weather; 3]>>,
}

impl Proxy {
    pub(super) async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let weather = Arc::new(Mutex::new([Weather::Clear; 3]));
        let (target, shared) = (target.to_owned(), weather.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward(stream, target.clone(), shared.clone()));
            }
        });
        Self { address, weather }
    }

    pub(super) fn set(&self, lane: Lane, weather: Weather) {
        self.weather.lock()[lane as usize] = weather;
    }

    pub(super) fn set_all(&self, weather: Weather) {
        *self.weather.lock() = [weather; 3];
    }
}

/// Position of the lane, after the magic, the frame's header and the versions.
const LANE_AT: usize = 8 + 12 + 2;

async fn forward(near: TcpStream, target: String, weather: Arc<Mutex<[Weather; 3]>>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let mut first = [0; LANE_AT + 1];
    while near.peek(&mut first).await.is_ok_and(|bytes| bytes > 0 && bytes < first.len()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let lane = usize::from(first[LANE_AT]).min(2);
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let there = {
        let weather = weather.clone();
        async move {
            let mut block = vec![0; 64 << 10];
            loop {
                let now = weather.lock()[lane];
                let most = match now {
                    Weather::Slow(bytes) => bytes,
                    _ => block.len(),
                };
                if matches!(now, Weather::Held | Weather::HeldThere) || most == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                let Ok(bytes @ 1..) = near_in.read(&mut block[..most]).await else { return };
                if let Weather::Damaged(one_of) = now {
                    block[..bytes].iter_mut().step_by(one_of).for_each(|byte| *byte ^= 0x10);
                }
                if far_out.write_all(&block[..bytes]).await.is_err() {
                    return;
                }
                if matches!(now, Weather::Slow(_)) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    };
    let back = async move {
        let mut block = vec![0; 4096];
        loop {
            let Ok(bytes @ 1..) = far_in.read(&mut block).await else { return };
            while matches!(weather.lock()[lane], Weather::Held | Weather::HeldBack) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if near_out.write_all(&block[..bytes]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

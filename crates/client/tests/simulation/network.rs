//! A network of the fake cluster in this process. Requests wait in the client, get lost, arrive after
//! their caller has given up, or are executed and their answers lost.

use crate::fake::{Service, State};
use bytes::Bytes;
use http_body::{Body as _, Frame};
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use stele_client::simulation::{Dial, Dialled, over};
use stele_proto::pdpb::pd_server::PdServer;
use stele_proto::stele::kv::v1::kv_server::KvServer;
use stele_proto::tikvpb::tikv_server::TikvServer;
use stele_types::Prng;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tower::Service as _;

type Request = http::Request<Body>;
type Response = http::Response<Body>;

pub(super) struct Network {
    state: Arc<Mutex<State>>,
    nodes: Vec<Node>,
    rng: Mutex<Prng>,
    /// Keys in what connections took from the client, by number.
    taken: Mutex<BTreeSet<u32>>,
}

struct Node {
    service: Service,
    /// Changes when all connections to the node break.
    cuts: watch::Sender<()>,
    down_until: Mutex<Instant>,
}

/// Returns the name of a key. Its number stands in it, so that the network can tell whether a request
/// with the key was taken.
pub(super) fn key(initial: u8, number: u32) -> String {
    format!("{}#{number:06}", char::from(initial))
}

impl Network {
    pub(super) fn new(stores: u64, seed: u64) -> Arc<Self> {
        let mut state = State::with_stores(stores);
        for store in 1..=stores {
            let address = format!("n{store}:1");
            state.nodes.push(crate::fake::Node { address, stores: vec![store] });
        }
        let state = Arc::new(Mutex::new(state));
        let nodes = (0..stores as usize).map(|node| Node {
            service: Service { state: Arc::clone(&state), node },
            cuts: watch::Sender::new(()),
            down_until: Mutex::new(Instant::now()),
        });
        let nodes = nodes.collect();
        let (rng, taken) = (Mutex::new(Prng::new(seed)), Mutex::default());
        Arc::new(Self { state, nodes, rng, taken })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap().below(bound)
    }

    pub(super) fn ms(&self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }

    /// Whether a fault of which one in so many happens does now. After `unruly` ended none does.
    fn is_fault(&self, one_in: u64) -> bool {
        self.state().unruly.is_some() && self.below(one_in) == 0
    }

    pub(super) fn cut(&self, node: usize) {
        self.nodes[node].cuts.send_replace(());
    }

    pub(super) fn stop(&self, node: usize, time: Duration) {
        *self.nodes[node].down_until.lock().unwrap() = Instant::now() + time;
        self.cut(node);
    }

    pub(super) fn has_taken(&self, number: u32) -> bool {
        self.taken.lock().unwrap().contains(&number)
    }

    fn is_down(&self, node: usize) -> bool {
        *self.nodes[node].down_until.lock().unwrap() > Instant::now()
    }

    fn note_taken(&self, data: &[u8]) {
        // A long value comes after its key.
        let data = data.get(..2 << 10).unwrap_or(data);
        let after_marks = data.split(|byte| *byte == b'#').skip(1);
        let numbers = after_marks
            .filter_map(|key| std::str::from_utf8(key.get(..6)?).ok()?.parse::<u32>().ok());
        self.taken.lock().unwrap().extend(numbers);
    }
}

impl Node {
    async fn serve(&self, request: Request) -> Response {
        let service = self.service.clone();
        let path = request.uri().path();
        let answer = if path.starts_with("/tikvpb.Tikv/") {
            TikvServer::new(service).call(request).await
        } else if path.starts_with("/pdpb.PD/") {
            PdServer::new(service).call(request).await
        } else {
            KvServer::new(service).call(request).await
        };
        answer.unwrap_or_else(|never| match never {})
    }
}

pub(super) struct Dialler(pub Arc<Network>);

impl Dial for Dialler {
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a> {
        Box::pin(async move {
            let network = &self.0;
            let nodes = network.state().nodes.iter().position(|node| node.address == address);
            let node = nodes.ok_or("no such host")?;
            match network.is_down(node) {
                true => Err(format!("{address}: connection refused")),
                false => Ok(over(Link { network: Arc::clone(network), node })),
            }
        })
    }
}

/// A connection to a node. After a break the next call makes it again, as tonic does.
#[derive(Clone)]
struct Link {
    network: Arc<Network>,
    node: usize,
}

type Carried = Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>>;

impl tower::Service<Request> for Link {
    type Response = Response;
    type Error = Status;
    type Future = Carried;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Carried {
        let link = self.clone();
        Box::pin(async move {
            if link.network.is_down(link.node) {
                return Err(broken());
            }
            let mut cut = link.cut();
            if request.uri().path().ends_with("/BatchCommands") {
                return Ok(link.stream(request).await);
            }
            tokio::select! {
                biased;
                () = &mut cut => Err(broken()),
                answer = link.unary(request) => answer,
            }
        })
    }
}

fn broken() -> Status {
    Status::from_error(Box::new(io::Error::from(io::ErrorKind::ConnectionReset)))
}

type Cut = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Link {
    fn cut(&self) -> Cut {
        let mut cuts = self.network.nodes[self.node].cuts.subscribe();
        Box::pin(async move { drop(cuts.changed().await) })
    }

    fn has_lost(&self) -> bool {
        let is_lost = self.network.is_fault(30);
        if is_lost {
            self.network.cut(self.node);
        }
        is_lost
    }

    /// Draws a delay; most are none.
    fn delay(&self) -> Option<Sleep> {
        self.network.is_fault(8).then(|| sleep(self.network.ms(250)))
    }

    async fn wait(&self) {
        if let Some(delay) = self.delay() {
            delay.await;
        }
    }

    async fn unary(&self, request: Request) -> Result<Response, Status> {
        self.wait().await;
        let (parts, mut body) = request.into_parts();
        let mut data = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            data.extend_from_slice(frame?.data_ref().unwrap_or(&Bytes::new()));
        }
        self.network.note_taken(&data);
        if self.has_lost() {
            return Err(broken());
        }
        let (answer, answered) = oneshot::channel();
        let (link, delay) = (self.clone(), self.delay());
        // The node executes what has arrived, whether or not its caller waits.
        tokio::spawn(async move {
            if let Some(delay) = delay {
                delay.await;
            }
            let body = Body::new(Arrived(VecDeque::from([Bytes::from(data)])));
            let request = http::Request::from_parts(parts, body);
            let _ = answer.send(link.network.nodes[link.node].serve(request).await);
        });
        let response = answered.await.map_err(|_| broken())?;
        self.wait().await;
        if self.has_lost() { Err(broken()) } else { Ok(response) }
    }

    async fn stream(&self, request: Request) -> Response {
        let pipe =
            |body| Pipe { body, link: self.clone(), cut: self.cut(), held: None, wait: None };
        let request = request.map(|body| Body::new(Uplink(pipe(body))));
        let response = self.network.nodes[self.node].serve(request).await;
        response.map(|body| Body::new(Downlink(pipe(body))))
    }
}

struct Arrived(VecDeque<Bytes>);

impl http_body::Body for Arrived {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
    }
}

struct Pipe {
    body: Body,
    link: Link,
    cut: Cut,
    held: Option<Frame<Bytes>>,
    /// Time of its arrival, or until the next one is taken.
    wait: Option<Pin<Box<Sleep>>>,
}

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

impl Pipe {
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        Poll::Ready(())
    }

    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.cut.as_mut().poll(cx).is_ready()
    }

    fn hold(&mut self) {
        self.wait = self.link.delay().map(Box::pin);
    }
}

/// Frames to a node. What was taken arrives even if the connection breaks, unless it gets lost.
struct Uplink(Pipe);

impl http_body::Body for Uplink {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let pipe = &mut self.0;
        loop {
            if pipe.held.is_none() && pipe.is_cut(cx) {
                return Poll::Ready(Some(Err(broken())));
            }
            ready!(pipe.poll_wait(cx));
            if let Some(frame) = pipe.held.take() {
                // Before it takes more, the connection is busy for a while.
                pipe.hold();
                return Poll::Ready(Some(Ok(frame)));
            }
            match ready!(Pin::new(&mut pipe.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let data = frame.data_ref().cloned().unwrap_or_default();
                    pipe.link.network.note_taken(&data);
                    if pipe.link.has_lost() {
                        return Poll::Ready(Some(Err(broken())));
                    }
                    pipe.held = Some(frame);
                    pipe.hold();
                }
                other => return Poll::Ready(other),
            }
        }
    }
}

/// Frames of a node. What is on its way when the connection breaks is lost.
struct Downlink(Pipe);

impl http_body::Body for Downlink {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let pipe = &mut self.0;
        loop {
            if pipe.is_cut(cx) {
                return Poll::Ready(Some(Err(broken())));
            }
            ready!(pipe.poll_wait(cx));
            if let Some(frame) = pipe.held.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            match ready!(Pin::new(&mut pipe.body).poll_frame(cx)) {
                Some(Ok(_)) if pipe.link.has_lost() => {}
                Some(Ok(frame)) => {
                    pipe.held = Some(frame);
                    pipe.hold();
                }
                other => return Poll::Ready(other),
            }
        }
    }
}

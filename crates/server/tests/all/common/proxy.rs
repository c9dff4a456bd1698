//! A network between two nodes that breaks.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Proxy {
    pub address: String,
    broken: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (broken, mut breaks) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if *breaks.borrow_and_update() {
                    continue;
                }
                let (target, mut breaks) = (target.clone(), breaks.clone());
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = breaks.wait_for(|broken| *broken) => {}
                    }
                });
            }
        });
        Self { address, broken }
    }

    /// Ends all connections, and new ones at once, while it is broken.
    pub(crate) fn set_broken(&self, broken: bool) {
        self.broken.send_replace(broken);
    }
}

//! The accept loop, with a listener of this test's own.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use thalweg_env::watch;

use parking_lot::Mutex;
use thalweg_env::connection::Listener;
use thalweg_sim::runtime;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

struct Queue(tokio::sync::Mutex<mpsc::UnboundedReceiver<io::Result<DuplexStream>>>);

impl Listener for Queue {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<DuplexStream> {
        match self.0.lock().await.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }
}

#[test]
fn connections_are_accepted_after_errors_until_the_stop_and_then_waited_for() {
    runtime::run(1, |env| async move {
        let (connect, queue) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let admitted = Arc::new(Mutex::new(0));
        let accepting = env.spawn({
            let (env, admitted) = (env.clone(), admitted.clone());
            async move {
                let listener = Queue(tokio::sync::Mutex::new(queue));
                thalweg_net::accept(&env, listener, stopped, |mut stream: DuplexStream| {
                    *admitted.lock() += 1;
                    // The third is refused.
                    (*admitted.lock() != 3).then(|| {
                        env.spawn(async move {
                            let mut rest = Vec::new();
                            stream.read_to_end(&mut rest).await.unwrap();
                        })
                    })
                })
                .await;
            }
        });
        let mut peers = Vec::new();
        for at in 0..3 {
            connect.send(Err(io::ErrorKind::ConnectionAborted.into())).unwrap();
            let (near, far) = tokio::io::duplex(10);
            connect.send(Ok(far)).unwrap();
            peers.push(near);
            env.sleep(Duration::from_millis(200)).await;
            assert_eq!(*admitted.lock(), at + 1);
        }
        let mut refused = peers.pop().unwrap();
        assert_eq!(refused.read(&mut [0]).await.unwrap(), 0);
        stop.send_replace(true);
        env.sleep(Duration::from_secs(1)).await;
        assert!(connect.is_closed(), "the listener is dropped");
        assert!(!accepting.is_finished());
        for mut peer in peers {
            peer.write_all(b"end").await.unwrap();
        }
        assert_eq!(accepting.await, Some(()));
    });
}

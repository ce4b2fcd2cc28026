//! The accept loop of a server.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use thalweg_env::connection::Listener;
use thalweg_env::{Env, Task, watch};

/// Pause after a failed accept: a cause such as the limit of open files rarely passes at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until `stop` becomes true or its sender is dropped, then drops the listener and waits
/// for the open connections. `admit` starts the task of a connection, or refuses it. Dropping the future
/// drops the tasks.
pub async fn accept<L: Listener>(
    env: &Env,
    listener: L,
    mut stop: watch::Receiver<bool>,
    mut admit: impl FnMut(L::Stream) -> Option<Task<()>>,
) {
    let mut connections: FuturesUnordered<Task<()>> = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = signalled(&mut stop) => break,
            Some(_) = connections.next() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => connections.extend(admit(stream)),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    env.sleep(PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while connections.next().await.is_some() {}
}

/// Returns when the signal is given, or its sender is dropped.
pub async fn signalled(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

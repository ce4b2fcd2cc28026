//! Unix sockets in folders.

use futures::poll;
use thalweg_net::socket::{connect, listen};

const SOCKET: &str = "test.sock";

#[tokio::test]
async fn a_client_in_the_queue_of_a_listener_that_ends_finds_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path(), SOCKET, 1).unwrap();
    let mut connecting = Box::pin(connect(folder.path(), SOCKET));
    // In the queue: when the listener closes, the kernel resets the connections that were not accepted.
    assert!(poll!(&mut connecting).is_pending());
    drop(listener);
    assert!(connecting.await.unwrap().is_none());
    // A later client finds no listener either.
    assert!(connect(folder.path(), SOCKET).await.unwrap().is_none());
    assert!(connect(&folder.path().join("absent"), SOCKET).await.unwrap().is_none());
}

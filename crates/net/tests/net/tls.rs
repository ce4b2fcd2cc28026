//! TLS with raw keys on both sides.

use std::time::Duration;

use thalweg_env::connection::Listener;
use thalweg_net::keys::Key;
use thalweg_net::tls::{TlsClient, TlsServer};
use thalweg_sim::net::{LinkSpec, Network, SimStream};
use thalweg_sim::runtime::run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A stream through a simulated network.
async fn streams(env: &thalweg_env::Env) -> (SimStream, SimStream) {
    let network = Network::new(env, LinkSpec::of(Duration::from_millis(1)));
    let (client, server) = (network.host("client"), network.host("server"));
    let listener = server.listen(1).unwrap();
    let near = client.connector(&server, 1).open().await.unwrap();
    (near, listener.accept().await.unwrap())
}

#[test]
fn both_sides_learn_the_other_ones_key_and_bytes_pass() {
    run(1, |env| async move {
        let [own, theirs] = [(); 2].map(|()| Key::generate(&env).unwrap());
        let (near, far) = streams(&env).await;
        let client = TlsClient::new(&own, Some(theirs.public())).unwrap();
        let server = TlsServer::new(&theirs).unwrap();
        let (near, far) = tokio::join!(client.connect(near), server.accept(far));
        let ((mut near, server_key), (mut far, client_key)) = (near.unwrap(), far.unwrap());
        assert_eq!((server_key, client_key), (theirs.public(), own.public()));
        near.write_all(b"question").await.unwrap();
        near.flush().await.unwrap();
        let mut found = [0; 8];
        far.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b"question");
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        let mut found = Vec::new();
        near.read_to_end(&mut found).await.unwrap();
        assert_eq!(found, b"answer");
    });
}

#[test]
fn a_client_refuses_a_server_with_another_key() {
    run(2, |env| async move {
        let [own, theirs, wanted] = [(); 3].map(|()| Key::generate(&env).unwrap());
        let (near, far) = streams(&env).await;
        let client = TlsClient::new(&own, Some(wanted.public())).unwrap();
        let server = TlsServer::new(&theirs).unwrap();
        let (near, far) = tokio::join!(client.connect(near), server.accept(far));
        assert!(near.is_err() && far.is_err());
    });
}

#[test]
fn a_client_without_tls_or_with_garbage_gets_no_further() {
    run(3, |env| async move {
        let theirs = Key::generate(&env).unwrap();
        let server = TlsServer::new(&theirs).unwrap();
        for text in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 0, 0], &[0; 64]] {
            let (mut near, far) = streams(&env).await;
            near.write_all(text).await.unwrap();
            near.shutdown().await.unwrap();
            assert!(server.accept(far).await.is_err());
        }
    });
}

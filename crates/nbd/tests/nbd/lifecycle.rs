use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_env::Env;
use thalweg_nbd::{Export, Server, ServerError, SocketError, UnixSocketOptions};

use crate::client::{FLUSH, Reply, WRITE};
use crate::memory::MemoryVolume;
use crate::{Fixture, MIB, eventually, quick_config};

fn mode(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_socket_is_private_unless_asked_otherwise() {
    let fixture = Fixture::new();
    assert_eq!(mode(&fixture.socket), 0o600);
    let open = fixture.directory.path().join("open.sock");
    fixture.server.listen_unix(&open, UnixSocketOptions { mode: 0o666 }, None).unwrap();
    assert_eq!(mode(&open), 0o666);
    let names: Vec<_> = fs::read_dir(fixture.directory.path()).unwrap().collect();
    assert_eq!(names.len(), 2, "no temporary name is left");
}

#[tokio::test]
async fn a_live_socket_is_not_taken_over() {
    let fixture = Fixture::new();
    let second = Server::new(Env::real(), quick_config());
    let result = second.listen_unix(&fixture.socket, UnixSocketOptions::default(), None);
    assert!(matches!(result, Err(ServerError::Socket(SocketError::InUse { .. }))), "{result:?}");
    let mut client = fixture.client().await;
    assert_eq!(client.call(FLUSH, 0, 0, 0).await, 0);
}

#[tokio::test]
async fn a_dead_socket_is_replaced_and_other_files_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let server = Server::new(Env::real(), quick_config());
    server.listen_unix(&path, UnixSocketOptions::default(), None).unwrap();
    assert_eq!(mode(&path), 0o600);
    let file = directory.path().join("file");
    fs::write(&file, "precious").unwrap();
    let result = server.listen_unix(&file, UnixSocketOptions::default(), None);
    assert!(
        matches!(result, Err(ServerError::Socket(SocketError::NotASocket { .. }))),
        "{result:?}"
    );
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    let nowhere = directory.path().join("missing/nbd.sock");
    let result = server.listen_unix(&nowhere, UnixSocketOptions::default(), None);
    assert!(matches!(result, Err(ServerError::Socket(SocketError::Io { .. }))), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_servers_that_race_for_a_dead_socket_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    for _ in 0..20 {
        let _ = fs::remove_file(&path);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let env = Env::real();
        let racers: Vec<_> = (0..4)
            .map(|_| {
                let (path, env) = (path.clone(), env.clone());
                env.clone().spawn(async move {
                    let server = Server::new(env, quick_config());
                    let won = server.listen_unix(&path, UnixSocketOptions::default(), None);
                    (server, won.is_ok())
                })
            })
            .collect();
        let outcomes = futures::future::join_all(racers).await;
        let wins = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().1).count();
        assert_eq!(wins, 1);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "the winner is reachable");
    }
}

#[tokio::test]
async fn shutdown_finishes_requests_flushes_and_removes_the_socket() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    let mut idle = fixture.raw().await;
    idle.greet(3).await;
    fixture.volume.stalls_writes.store(true, Ordering::SeqCst);
    let write = client.request(WRITE, 0, 0, 4096).await;
    client.send(&[1; 4096]).await;
    // A reply from another connection shows that the server has had time to start the write.
    assert_eq!(fixture.client().await.call(FLUSH, 0, 0, 0).await, 0);
    let server = fixture.server.clone();
    let shutdown = Env::real().spawn(async move { server.shutdown().await });
    eventually(|| !fixture.socket.exists()).await;
    assert!(!shutdown.is_finished(), "a request is in flight");
    fixture.volume.gate.add_permits(1);
    shutdown.await.unwrap().unwrap();
    assert_eq!(client.reply().await, Reply::Simple { error: 0, cookie: write });
    assert!(client.is_closed().await);
    assert!(idle.is_closed().await);
    assert_eq!(fixture.volume.flushes.load(Ordering::SeqCst), 2);
    assert_eq!(fixture.server.stats().connections_open.get(), 0);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    fixture.volume.stalls_writes.store(true, Ordering::SeqCst);
    client.request(WRITE, 0, 0, 4096).await;
    client.send(&[1; 4096]).await;
    assert_eq!(fixture.client().await.call(FLUSH, 0, 0, 0).await, 0);
    fixture.server.shutdown().await.unwrap();
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn shutdown_reports_a_failed_flush() {
    let fixture = Fixture::new();
    *fixture.volume.failure.lock() = Some(thalweg_store::block::StoreError::NoSpace);
    let result = fixture.server.shutdown().await;
    assert!(matches!(result, Err(ServerError::Flush { .. })), "{result:?}");
}

#[tokio::test]
async fn a_socket_taken_by_another_is_left_alone() {
    let fixture = Fixture::new();
    fs::remove_file(&fixture.socket).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&fixture.socket).unwrap();
    fixture.server.shutdown().await.unwrap();
    assert!(fixture.socket.exists());
    drop(other);
}

#[tokio::test]
async fn dropping_the_server_ends_connections_and_removes_the_socket() {
    let Fixture { server, socket, directory, .. } = Fixture::new();
    let mut client = crate::client::Client::connect(&socket).await;
    client.greet(3).await;
    client.go("disk").await;
    drop(server);
    assert!(client.is_closed().await);
    eventually(|| !socket.exists()).await;
    drop(directory);
}

#[tokio::test]
async fn a_removed_export_ends_its_connections_and_no_others() {
    let fixture = Fixture::new();
    let other = Arc::new(MemoryVolume::new(MIB));
    fixture.server.add_export(Export::new("other", other.clone())).unwrap();
    let mut on_other = fixture.raw().await;
    on_other.greet(3).await;
    on_other.go("other").await;
    let mut on_disk = fixture.client().await;
    assert!(matches!(fixture.server.remove_export("none").await, Err(ServerError::NoExport(_))));
    let volume = fixture.server.remove_export("other").await.unwrap();
    assert_eq!(volume.size(), MIB);
    assert_eq!(other.flushes.load(Ordering::SeqCst), 1);
    assert!(on_other.is_closed().await);
    assert_eq!(on_disk.call(FLUSH, 0, 0, 0).await, 0);
    assert_eq!(fixture.server.exports(), ["disk"]);
    drop(volume);
    eventually(|| Arc::strong_count(&other) == 1).await;
}

use std::time::Duration;

use proptest::prelude::*;
use thalweg_env::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Fixture;
use crate::client::READ;

/// Sends bytes, closes the sending side, and reads until the server closes.
async fn throw(client: &mut crate::client::Client, bytes: &[u8]) {
    // The server may close before all bytes are sent; the rest is lost then.
    let _ = client.stream.write_all(bytes).await;
    let _ = client.stream.shutdown().await;
    let mut sink = Vec::new();
    let reading = client.stream.read_to_end(&mut sink);
    let ended = Env::real().timeout(Duration::from_secs(5), reading).await;
    assert!(ended.is_some(), "the server did not close after garbage");
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let noise = proptest::collection::vec(any::<u8>(), 0..200);
    let option =
        (0u32..14, proptest::collection::vec(any::<u8>(), 0..60)).prop_map(|(code, data)| {
            let mut bytes = b"IHAVEOPT".to_vec();
            bytes.extend_from_slice(&code.to_be_bytes());
            bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&data);
            bytes
        });
    let request = (any::<[u8; 8]>(), 0u16..32, 0u16..10, 0u32..40_000, proptest::bool::ANY)
        .prop_map(|(cookie, flags, command, len, near)| {
            let mut bytes = 0x25609513u32.to_be_bytes().to_vec();
            bytes.extend_from_slice(&flags.to_be_bytes());
            bytes.extend_from_slice(&command.to_be_bytes());
            bytes.extend_from_slice(&cookie);
            let offset = if near { 512 } else { u64::from_be_bytes(cookie) };
            bytes.extend_from_slice(&offset.to_be_bytes());
            bytes.extend_from_slice(&(len / 512 * 512).to_be_bytes());
            if command == 1 {
                bytes.resize(bytes.len() + len as usize / 512 * 512, 0xaa);
            }
            bytes
        });
    prop_oneof![1 => noise, 3 => option, 3 => request]
}

#[test]
fn a_live_server_survives_garbage_in_every_phase() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let fixture = runtime.block_on(async { Fixture::new() });
    let messages = proptest::collection::vec(message(), 0..8);
    let config = ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() };
    proptest!(config, |(phase in 0u8..4, messages in messages)| {
        runtime.block_on(async {
            let mut client = match phase {
                0 => fixture.raw().await,
                1 => {
                    let mut client = fixture.raw().await;
                    client.greet(3).await;
                    client
                }
                2 => fixture.plain_client().await,
                _ => fixture.client().await,
            };
            throw(&mut client, &messages.concat()).await;
        });
    });
    runtime.block_on(async {
        let mut client = fixture.client().await;
        assert_eq!(client.call(READ, 0, 0, 512).await, 0, "the server still serves");
        drop(client);
        crate::eventually(|| fixture.server.stats().connections_open.get() == 0).await;
    });
}

#[tokio::test]
async fn a_wrong_magic_ends_the_connection_and_is_counted() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    client.send(&[0x25; 28]).await;
    assert!(client.is_closed().await);
    crate::eventually(|| fixture.server.stats().protocol_errors.get() == 1).await;
}

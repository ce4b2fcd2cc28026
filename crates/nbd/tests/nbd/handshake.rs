use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_nbd::{Export, ServerConfig, ServerError};

use crate::client::{be32, be64, context_request, export_request};
use crate::memory::MemoryVolume;
use crate::{Fixture, MIB, quick_config};

const UNSUP: u32 = (1 << 31) | 1;
const INVALID: u32 = (1 << 31) | 3;
const UNKNOWN: u32 = (1 << 31) | 6;
const TOO_BIG: u32 = (1 << 31) | 9;

#[tokio::test]
async fn go_tells_size_flags_and_block_sizes() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    assert_eq!(client.verdict(8, &[]).await, 1);
    let replies = client.option(6, &export_request("", &[1, 2, 3])).await;
    let of = |kind: u16| {
        let found = replies.iter().find(|reply| reply.0 == 3 && reply.1[..2] == kind.to_be_bytes());
        found.map(|reply| reply.1[2..].to_vec()).unwrap()
    };
    assert_eq!(be64(&of(0)), 8 * MIB);
    let flags = u16::from_be_bytes([of(0)[8], of(0)[9]]);
    assert_eq!(flags, 0b1101_1110_1101, "flags, FUA, flush, trim, zeroes, DF, multi, cache, fast");
    assert_eq!(of(1), b"disk");
    assert_eq!(of(2), b"a disk");
    let sizes: Vec<u32> = of(3).chunks(4).map(be32).collect();
    assert_eq!(sizes, [512, 4096, 32 << 20]);
    assert_eq!(client.go("disk").await.len(), 3);
}

#[tokio::test]
async fn a_read_only_export_says_so_and_offers_no_writes() {
    let fixture = Fixture::with(MemoryVolume::new(MIB).read_only(), quick_config());
    let mut client = fixture.raw().await;
    client.greet(3).await;
    let replies = client.go("disk").await;
    let export = replies.iter().find(|reply| reply.1.starts_with(&[0, 0])).unwrap();
    let flags = u16::from_be_bytes([export.1[10], export.1[11]]);
    assert_eq!(flags, 0b101_0000_1111);
}

#[tokio::test]
async fn export_name_pads_unless_declined() {
    let fixture = Fixture::new();
    for (flags, padding) in [(3, 0), (1, 124), (0, 124)] {
        let mut client = fixture.raw().await;
        client.greet(flags).await;
        client.send_option(1, b"disk").await;
        let reply = client.receive(10 + padding).await;
        assert_eq!(be64(&reply), 8 * MIB);
        assert!(reply[10..].iter().all(|byte| *byte == 0));
        assert_eq!(client.call(3, 0, 0, 0).await, 0);
    }
}

#[tokio::test]
async fn an_unknown_name_is_refused() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    assert_eq!(client.verdict(6, &export_request("nothing", &[])).await, UNKNOWN);
    assert_eq!(client.verdict(7, &export_request("nothing", &[])).await, UNKNOWN);
    client.send_option(1, b"nothing").await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_client_without_fixed_newstyle_gets_export_name_only() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(0).await;
    client.send_option(3, &[]).await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn list_names_every_export() {
    let fixture = Fixture::new();
    let other = Arc::new(MemoryVolume::new(MIB));
    fixture.server.add_export(Export::new("other", other)).unwrap();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    let replies = client.option(3, &[]).await;
    let names: Vec<&[u8]> = replies.iter().map(|reply| reply.1.as_slice()).collect();
    assert_eq!(names, [&b"\0\0\0\x04diska disk"[..], b"\0\0\0\x05other", b""]);
    assert_eq!(client.verdict(3, b"x").await, INVALID);
}

#[tokio::test]
async fn the_default_export_is_the_marked_or_the_only_one() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    assert_eq!(client.verdict(6, &export_request("", &[])).await, 1);
    let big = || Arc::new(MemoryVolume::new(2 * MIB));
    fixture.server.add_export(Export::new("big", big())).unwrap();
    assert_eq!(client.verdict(6, &export_request("", &[])).await, UNKNOWN);
    fixture.server.remove_export("big").await.unwrap();
    fixture.server.add_export(Export::new("big", big()).default_export()).unwrap();
    let replies = client.option(6, &export_request("", &[])).await;
    assert_eq!(be64(&replies[0].1[2..]), 2 * MIB);
    let second = fixture.server.add_export(Export::new("huge", big()).default_export());
    assert!(matches!(second, Err(ServerError::Export { .. })));
    let twice = fixture.server.add_export(Export::new("disk", big()));
    assert!(matches!(twice, Err(ServerError::Export { .. })));
    let long = fixture.server.add_export(Export::new("n".repeat(4097), big()));
    assert!(matches!(long, Err(ServerError::Export { .. })));
}

#[tokio::test]
async fn unknown_options_are_unsupported_and_the_stream_stays_in_step() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    assert_eq!(client.verdict(4, b"peek").await, UNSUP);
    assert_eq!(client.verdict(11, &[]).await, UNSUP, "extended headers");
    assert_eq!(client.verdict(5, &[]).await, UNSUP, "TLS without certificates");
    assert_eq!(client.verdict(0xdead_beef, &[7; 1000]).await, UNSUP);
    assert_eq!(client.verdict(6, &[0; 65_537]).await, TOO_BIG);
    assert_eq!(client.verdict(6, &[0, 0, 0, 9, b'x']).await, INVALID);
    assert_eq!(client.verdict(8, b"payload").await, INVALID);
    assert_eq!(client.verdict(7, &export_request(&"n".repeat(4097), &[])).await, INVALID);
    assert_eq!(client.verdict(7, &[0, 0, 0, 1, 0xff, 0, 0]).await, INVALID, "not UTF-8");
    assert_eq!(client.verdict(2, b"bye").await, 1);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn an_endless_option_ends_the_connection() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    client.send(b"IHAVEOPT").await;
    client.send(&[0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff]).await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn meta_contexts_are_listed_and_selected() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    let all = context_request("disk", &[]);
    assert_eq!(client.verdict(9, &all).await, INVALID, "before structured replies");
    assert_eq!(client.verdict(8, &[]).await, 1);
    let context = |id: u8| (4, [&[0, 0, 0, id], &b"base:allocation"[..]].concat());
    for queries in [&[][..], &["base:"], &["x-own:thing", "base:allocation"]] {
        let replies = client.option(9, &context_request("disk", queries)).await;
        assert_eq!(replies, [context(0), (1, vec![])], "{queries:?}");
    }
    for queries in [&[][..], &["base:"], &["base:other"], &["nonsense"]] {
        let replies = client.option(10, &context_request("disk", queries)).await;
        assert_eq!(replies, [(1, vec![])], "{queries:?}");
    }
    let replies = client.option(10, &context_request("disk", &["base:allocation"])).await;
    assert_eq!(replies, [context(1), (1, vec![])]);
    assert_eq!(client.verdict(10, &context_request("nothing", &[])).await, UNKNOWN);
    assert_eq!(client.verdict(10, &[0, 0, 0, 4]).await, INVALID);
    // The failed selection also cleared the earlier one.
    client.go("disk").await;
    assert_eq!(client.call(7, 0, 0, 4096).await, 22);
}

#[tokio::test]
async fn a_context_counts_only_for_the_export_it_was_selected_for() {
    let fixture = Fixture::new();
    let other = Arc::new(MemoryVolume::new(MIB));
    fixture.server.add_export(Export::new("other", other)).unwrap();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    client.negotiate_structured("other").await;
    client.go("disk").await;
    assert_eq!(client.call(7, 0, 0, 4096).await, 22);
}

#[tokio::test]
async fn unknown_client_flags_end_the_connection() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(0x8000_0003).await;
    assert!(client.is_closed().await);
    crate::eventually(|| fixture.server.stats().handshakes_failed.get() == 1).await;
}

#[tokio::test]
async fn a_silent_client_is_dropped_in_time() {
    let fixture = Fixture::new();
    let mut client = fixture.raw().await;
    client.greet(3).await;
    assert!(client.is_closed().await);
    assert_eq!(fixture.server.stats().handshakes_failed.get(), 1);
}

#[tokio::test]
async fn too_many_connections_are_refused() {
    let config = ServerConfig { max_connections: 2, ..quick_config() };
    let fixture = Fixture::with(MemoryVolume::new(MIB), config);
    let first = fixture.client().await;
    let mut second = fixture.client().await;
    let mut third = fixture.raw().await;
    assert!(third.is_closed().await);
    assert_eq!(fixture.server.stats().connections_refused.get(), 1);
    drop(first);
    crate::eventually(|| fixture.server.stats().connections_open.get() == 1).await;
    let mut third = fixture.client().await;
    assert_eq!(third.call(3, 0, 0, 0).await, 0);
    assert_eq!(second.call(3, 0, 0, 0).await, 0);
    assert_eq!(fixture.volume.flushes.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn idle_clients_on_one_kind_of_socket_do_not_lock_out_the_other() {
    let config = ServerConfig { max_connections: 2, ..quick_config() };
    let fixture = Fixture::with(MemoryVolume::new(MIB), config);
    let address = "127.0.0.1:0".parse().unwrap();
    let address = fixture.server.listen_tcp(address, None).await.unwrap();
    let _idle = [fixture.client().await, fixture.client().await];
    let mut refused = fixture.raw().await;
    assert!(refused.is_closed().await);
    let mut greeting = [0; 8];
    let mut tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncReadExt::read_exact(&mut tcp, &mut greeting).await.unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
}

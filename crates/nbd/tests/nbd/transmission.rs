use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_nbd::ServerConfig;
use thalweg_nbd::protocol::Command;
use thalweg_store::block::{Lba, StoreError};
use thalweg_store::device::DeviceError;
use tokio::io::AsyncWriteExt;

use crate::client::*;
use crate::memory::MemoryVolume;
use crate::{Fixture, MIB, eventually, quick_config};

const HOLE: u32 = 3;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

#[tokio::test]
async fn what_is_written_is_read_back_at_every_size() {
    let fixture = Fixture::with(MemoryVolume::new(80 * MIB), quick_config());
    let mut client = fixture.client().await;
    for (index, len) in [512, 4096, 8192, 65_536, 131_072, 1_000_448, 32 << 20].iter().enumerate() {
        let data = pattern(*len, index as u8);
        let offset = 512 * index as u64;
        assert_eq!(client.write(0, offset, &data).await, 0);
        assert!(client.read(0, offset, *len as u32).await == data, "{len} bytes");
    }
    let stats = fixture.server.stats().command(Command::Write);
    assert_eq!(stats.requests.get(), 7);
    assert_eq!(stats.latency.latency().count, 7);
}

#[tokio::test]
async fn simple_replies_carry_data_without_structured_replies() {
    let fixture = Fixture::new();
    let mut client = fixture.plain_client().await;
    let data = pattern(200_000 / 512 * 512, 1);
    assert_eq!(client.write(0, 4096, &data).await, 0);
    let cookie = client.request(READ, 0, 4096, data.len() as u32).await;
    assert_eq!(client.reply().await, Reply::Simple { error: 0, cookie });
    assert!(client.receive(data.len()).await == data);
    // A failed read has no payload, and the stream stays in step.
    assert_eq!(client.call(READ, 0, 8 * MIB, 512).await, EINVAL);
    assert_eq!(client.call(READ, DF, 0, 512).await, EINVAL);
    assert_eq!(client.call(FLUSH, 0, 0, 0).await, 0);
}

#[tokio::test]
async fn a_pipeline_of_requests_in_one_segment_is_answered_in_full() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    let mut bytes = Vec::new();
    for index in 0..500u64 {
        bytes.extend_from_slice(&0x25609513u32.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, 1]);
        bytes.extend_from_slice(&index.to_be_bytes());
        bytes.extend_from_slice(&(index * 4096).to_be_bytes());
        bytes.extend_from_slice(&4096u32.to_be_bytes());
        bytes.extend_from_slice(&[index as u8; 4096]);
    }
    let (mut reading, mut writing) = client.stream.split();
    let replies = async {
        let mut replies = vec![0; 500 * 16];
        tokio::io::AsyncReadExt::read_exact(&mut reading, &mut replies).await.unwrap();
        replies
    };
    let (sent, replies) = futures::join!(writing.write_all(&bytes), replies);
    sent.unwrap();
    let mut cookies: Vec<u64> = replies.chunks(16).map(|reply| be64(&reply[8..])).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..500));
    for index in 0..500u64 {
        assert_eq!(client.read(0, index * 4096, 4096).await, [index as u8; 4096]);
    }
}

#[tokio::test]
async fn holes_are_sent_as_holes_unless_forbidden() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    let data = pattern(65_536, 9);
    assert_eq!(client.write(0, 65_536, &data).await, 0);
    let cookie = client.request(READ, 0, 0, 262_144).await;
    let chunks = client.chunks(cookie).await;
    let kinds: Vec<(u16, usize)> = chunks.iter().map(|chunk| (chunk.0, chunk.1.len())).collect();
    assert_eq!(kinds, [(2, 12), (1, 8 + 65_536), (2, 12)]);
    let cookie = client.request(READ, DF, 0, 262_144).await;
    let chunks = client.chunks(cookie).await;
    assert_eq!(chunks.len(), 1);
    assert_eq!((chunks[0].0, chunks[0].1.len()), (1, 8 + 262_144));
    assert!(chunks[0].1[8 + 65_536..8 + 131_072] == data);
    // Too many pieces: one chunk is cheaper.
    for block in 0..200u64 {
        assert_eq!(client.write(0, MIB + block * 8192, &data[..4096]).await, 0);
    }
    let cookie = client.request(READ, 0, MIB, 200 * 8192).await;
    assert_eq!(client.chunks(cookie).await.len(), 1);
}

#[tokio::test]
async fn block_status_merges_and_limits() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    assert_eq!(client.write(0, 4096, &[1; 12_288]).await, 0);
    assert_eq!(
        client.status(0, 0, 8 << 20).await,
        [(4096, HOLE), (12_288, 0), ((8 << 20) - 16_384, HOLE)]
    );
    assert_eq!(client.status(REQ_ONE, 512, 8192).await, [(3584, HOLE)]);
    assert_eq!(client.status(REQ_ONE, 4096, 8192).await, [(8192, 0)]);
    assert_eq!(client.status(REQ_ONE, 4096, 1 << 20).await, [(12_288, 0)]);
}

#[tokio::test]
async fn block_status_of_many_extents_is_cut_and_can_be_continued() {
    let fixture = Fixture::with(MemoryVolume::new(400 * MIB), quick_config());
    let mut client = fixture.client().await;
    for block in 0..10_000u64 {
        fixture.volume.preset(block * 8192, 4096);
    }
    let first = client.status(0, 0, 300 << 20).await;
    assert_eq!(first.len(), 8192);
    let covered: u32 = first.iter().map(|extent| extent.0).sum();
    assert_eq!(covered, 8192 * 4096);
    let second = client.status(0, u64::from(covered), (300 << 20) - covered).await;
    assert_eq!(second.len(), 8192);
    // Longer than one window, and merged over its border.
    assert_eq!(client.status(0, 100 * MIB, 300 << 20).await, [(300 << 20, HOLE)]);
}

#[tokio::test]
async fn zeroes_trim_and_fua_reach_the_volume() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    assert_eq!(client.write(FUA, 0, &[7; 16_384]).await, 0);
    assert_eq!(fixture.volume.fuas.load(Ordering::SeqCst), 1);
    assert_eq!(client.call(WRITE_ZEROES, FUA | NO_HOLE, 0, 4096).await, 0);
    assert_eq!(fixture.volume.kept.load(Ordering::SeqCst), 1);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO, 4096, 4096).await, 0);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO, 8192, 512).await, ENOTSUP);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 8192, 4096).await, ENOTSUP);
    assert_eq!(client.call(TRIM, FUA, 12_288, 4096).await, 0);
    assert_eq!(fixture.volume.fuas.load(Ordering::SeqCst), 3);
    assert_eq!(
        client.status(0, 0, 16_384).await,
        [(4096, 0), (4096, HOLE), (4096, 0), (4096, HOLE)]
    );
    let data = client.read(0, 0, 16_384).await;
    assert!(data[..8192].iter().all(|byte| *byte == 0));
    assert!(data[8192..12_288].iter().all(|byte| *byte == 7), "a refused zeroing changes nothing");
    assert_eq!(client.call(FLUSH, FUA, 0, 0).await, 0);
    assert_eq!(fixture.volume.flushes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn cache_reads_ahead_and_sends_nothing() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    assert_eq!(client.call(CACHE, 0, 0, 3 << 20).await, 0);
    assert_eq!(fixture.volume.reads.load(Ordering::SeqCst), 3);
    assert_eq!(client.call(CACHE, REQ_ONE, 0, 4096).await, EINVAL);
}

#[tokio::test]
async fn bad_requests_are_refused_and_the_stream_stays_in_step() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    let end = 8 * MIB;
    for (command, flags, offset, len, expected) in [
        (READ, 0, end, 512, EINVAL),
        (READ, 0, end - 512, 1024, EINVAL),
        (READ, 0, u64::MAX - 511, 512, EINVAL),
        (READ, 0, 1, 512, EINVAL),
        (READ, 0, 0, 513, EINVAL),
        (READ, 0, 0, 0, EINVAL),
        (READ, 0, 0, (32 << 20) + 512, EINVAL),
        (READ, 0x100, 0, 512, EINVAL),
        (TRIM, 0, end, 512, EINVAL),
        (TRIM, NO_HOLE, 0, 512, EINVAL),
        (WRITE_ZEROES, 0, end, 512, ENOSPC),
        (WRITE_ZEROES, 0, 256, 512, EINVAL),
        (BLOCK_STATUS, 0, end, 512, EINVAL),
        (FLUSH, 0, 0, 512, EINVAL),
        (8, 0, 0, 512, EINVAL),
        (0xffff, 0, 0, 512, EINVAL),
    ] {
        let found = client.call(command, flags, offset, len).await;
        assert_eq!(found, expected, "{command} {flags} {offset} {len}");
    }
    assert_eq!(client.write(0, end - 512, &[1; 1024]).await, ENOSPC);
    assert_eq!(client.write(0, 100, &[1; 512]).await, EINVAL);
    assert_eq!(client.write(0x80, 0, &[1; 4096]).await, EINVAL);
    assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 512]).await, EINVAL);
    assert_eq!(client.write(0, 0, &[]).await, EINVAL);
    assert_eq!(client.status(0, 0, 8 << 20).await, [(8 << 20, HOLE)], "nothing was written");
    let stats = fixture.server.stats();
    assert_eq!(stats.command(Command::Write).errors.get(), 5);
    assert_eq!(stats.command(Command::Unknown(8)).errors.get(), 2);
}

#[tokio::test]
async fn a_write_too_long_to_skip_ends_the_connection() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    client.request(WRITE, 0, 0, u32::MAX).await;
    assert!(client.is_closed().await);
    eventually(|| fixture.server.stats().protocol_errors.get() == 1).await;
}

#[tokio::test]
async fn a_read_only_volume_refuses_writes() {
    let fixture = Fixture::with(MemoryVolume::new(MIB).read_only(), quick_config());
    let mut client = fixture.client().await;
    assert_eq!(client.write(0, 0, &[1; 4096]).await, EPERM);
    assert_eq!(client.call(TRIM, 0, 0, 4096).await, EPERM);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, 4096).await, EPERM);
    assert_eq!(client.call(FLUSH, 0, 0, 0).await, 0);
    assert_eq!(client.read(0, 0, 4096).await, [0; 4096]);
}

#[tokio::test]
async fn errors_of_the_volume_become_error_numbers() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    let full = DeviceError::NoSpace { device: "disk".to_owned() };
    let damaged = StoreError::Corrupt { lba: Lba(5), detail: "no mirror".to_owned() };
    for (error, expected) in [
        (StoreError::NoSpace, ENOSPC),
        (StoreError::Device(full), ENOSPC),
        (StoreError::Invalid("so".to_owned()), EINVAL),
        (StoreError::Poisoned(Arc::from("a flush failed")), EIO),
        (damaged, EIO),
    ] {
        let text = error.to_string();
        *fixture.volume.failure.lock() = Some(error);
        assert_eq!(client.write(0, 0, &[1; 4096]).await, expected);
        assert_eq!(client.call(FLUSH, 0, 0, 0).await, expected);
        let cookie = client.request(READ, 0, 0, 131_072).await;
        let chunks = client.chunks(cookie).await;
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0].0, 0x8001);
        assert_eq!(&chunks[0].1[6..], text.as_bytes(), "the client can show why");
    }
    *fixture.volume.failure.lock() = None;
    assert_eq!(client.read(0, 0, 4096).await, [0; 4096]);
}

#[tokio::test]
async fn reads_pass_a_pending_flush() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    fixture.volume.stalls_flushes.store(true, Ordering::SeqCst);
    let flush = client.request(FLUSH, 0, 0, 0).await;
    assert_eq!(client.read(0, 0, 4096).await, [0; 4096]);
    assert_eq!(client.write(0, 0, &[3; 4096]).await, 0);
    fixture.volume.gate.add_permits(1);
    assert_eq!(client.reply().await, Reply::Simple { error: 0, cookie: flush });
}

#[tokio::test]
async fn requests_in_flight_are_bounded() {
    let config = ServerConfig { max_requests: 4, ..quick_config() };
    let fixture = Fixture::with(MemoryVolume::new(MIB), config);
    let mut client = fixture.client().await;
    fixture.volume.stalls_flushes.store(true, Ordering::SeqCst);
    for _ in 0..4 {
        client.request(FLUSH, 0, 0, 0).await;
    }
    client.request(READ, 0, 0, 4096).await;
    let env = thalweg_env::Env::real();
    let early = env.timeout(std::time::Duration::from_millis(200), client.reply()).await;
    assert_eq!(early, None, "the fifth request waits");
    fixture.volume.gate.add_permits(4);
    for _ in 0..5 {
        assert_eq!(client.reply().await.error(), 0);
    }
}

#[tokio::test]
async fn bytes_in_flight_are_bounded() {
    let config = ServerConfig { max_bytes: MIB as usize, ..quick_config() };
    let fixture = Fixture::with(MemoryVolume::new(8 * MIB), config);
    let client = fixture.client().await;
    fixture.volume.stalls_writes.store(true, Ordering::SeqCst);
    let (mut reading, mut writing) = client.stream.into_split();
    let sending = async {
        for index in 0..32u8 {
            let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, index];
            bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]);
            bytes.resize(28 + 262_144, index);
            writing.write_all(&bytes).await.unwrap();
        }
    };
    let mut sending = std::pin::pin!(sending);
    let env = thalweg_env::Env::real();
    let early = env.timeout(std::time::Duration::from_millis(300), sending.as_mut()).await;
    assert_eq!(early, None, "8 MiB were taken although 1 MiB is in flight");
    fixture.volume.gate.add_permits(32);
    sending.await;
    tokio::io::AsyncReadExt::read_exact(&mut reading, &mut [0; 32 * 16]).await.unwrap();
}

#[tokio::test]
async fn connections_share_the_bytes_in_flight() {
    let config = ServerConfig { max_server_bytes: 64 << 10, ..quick_config() };
    let fixture = Fixture::with(MemoryVolume::new(MIB), config);
    let mut client = fixture.client().await;
    fixture.volume.stalls_writes.store(true, Ordering::SeqCst);
    for _ in 0..8 {
        client.request(WRITE, 0, 0, 4096).await;
        client.send(&[1; 4096]).await;
    }
    // 32 KiB are in flight, which is half of what one connection may have, and all of what each of two may.
    client.request(READ, 0, 8192, 4096).await;
    assert_eq!(client.reply().await.error(), 0);
    let _other = fixture.client().await;
    client.request(READ, 0, 8192, 4096).await;
    let env = thalweg_env::Env::real();
    let early = env.timeout(std::time::Duration::from_millis(200), client.reply()).await;
    assert_eq!(early, None, "the request waits");
    fixture.volume.gate.add_permits(8);
    for _ in 0..9 {
        assert_eq!(client.reply().await.error(), 0);
    }
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_not_read_further() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    for _ in 0..64 {
        client.request(READ, DF, 0, 1 << 20).await;
    }
    let env = thalweg_env::Env::real();
    env.sleep(std::time::Duration::from_millis(300)).await;
    let served = fixture.server.stats().command(Command::Read).requests.get();
    assert!(served < 8, "{served} replies of 1 MiB are waiting");
    for _ in 0..64 {
        assert_eq!(client.reply().await.error(), 0);
    }
}

#[tokio::test]
async fn a_client_that_vanishes_in_a_payload_changes_nothing() {
    let fixture = Fixture::new();
    for sent in [0, 100, 4096, 65_536, 131_071] {
        let mut client = fixture.client().await;
        client.request(WRITE, 0, 0, 131_072).await;
        client.send(&vec![9; sent]).await;
        drop(client);
    }
    eventually(|| fixture.server.stats().connections_open.get() == 0).await;
    assert_eq!(fixture.server.stats().command(Command::Write).requests.get(), 0);
    let mut client = fixture.client().await;
    assert_eq!(client.status(0, 0, 8 << 20).await, [(8 << 20, HOLE)]);
}

#[tokio::test]
async fn a_request_in_flight_is_finished_for_a_client_that_has_gone() {
    let fixture = Fixture::new();
    fixture.volume.stalls_writes.store(true, Ordering::SeqCst);
    let mut client = fixture.client().await;
    client.request(WRITE, 0, 0, 4096).await;
    client.send(&[5; 4096]).await;
    drop(client);
    let mut client = fixture.client().await;
    assert_eq!(client.read(0, 0, 4096).await, [0; 4096]);
    fixture.volume.gate.add_permits(1);
    eventually(|| fixture.server.stats().command(Command::Write).requests.get() == 1).await;
    assert_eq!(client.read(0, 0, 4096).await, [5; 4096]);
}

#[tokio::test]
async fn disconnect_answers_what_is_outstanding_and_closes() {
    let fixture = Fixture::new();
    fixture.volume.stalls_flushes.store(true, Ordering::SeqCst);
    let mut client = fixture.client().await;
    let flush = client.request(FLUSH, 0, 0, 0).await;
    client.request(DISC, 0, 0, 0).await;
    client.request(READ, 0, 0, 4096).await;
    fixture.volume.gate.add_permits(1);
    assert_eq!(client.reply().await, Reply::Simple { error: 0, cookie: flush });
    assert!(client.is_closed().await, "a request after the disconnect is not answered");
}

#[tokio::test]
async fn a_volume_may_grow_and_shrink_while_it_is_served() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    assert_eq!(client.write(0, 8 * MIB, &[1; 4096]).await, ENOSPC);
    fixture.volume.resize(16 * MIB);
    assert_eq!(client.write(0, 8 * MIB, &[1; 4096]).await, 0);
    fixture.volume.resize(4 * MIB);
    assert_eq!(client.call(READ, 0, 8 * MIB, 4096).await, EINVAL);
    assert_eq!(client.write(0, 4 * MIB, &[1; 4096]).await, ENOSPC);
}

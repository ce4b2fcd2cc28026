//! Calls in both directions over one connection, in virtual time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thalweg_env::{Env, Task, Tenure};
use thalweg_net::channel::{CallError, Channel, Handler, Incoming, Limits, NoCalls, Side};
use thalweg_net::frame;
use thalweg_net::serving::Serving;
use thalweg_sim::runtime;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Answers a number of milliseconds after that many milliseconds, with its double and the payload.
struct Doubler {
    env: Env,
    serving: Serving,
    started: Arc<AtomicUsize>,
}

impl Handler for Doubler {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let millis: u64 = call.decode().map_err(io::Error::other)?;
        let (env, payload) = (self.env.clone(), call.payload);
        self.started.fetch_add(1, Ordering::Relaxed);
        let work = async move {
            env.sleep(Duration::from_millis(millis)).await;
            (2 * millis, vec![payload])
        };
        self.serving.answer(call.id, 1, work).await;
        Ok(())
    }
}

struct Peer {
    channel: Channel,
    started: Arc<AtomicUsize>,
    run: Task<io::Result<()>>,
}

fn peer(env: &Env, side: Side, limits: Limits, budget: u32, stream: DuplexStream) -> Peer {
    let (reader, writer) = tokio::io::split(stream);
    let channel = Channel::new(env, side, limits, writer);
    let started = Arc::<AtomicUsize>::default();
    let serving = Serving::new(env, channel.clone(), budget);
    let doubler = Doubler { env: env.clone(), serving, started: started.clone() };
    let receiving = channel.clone();
    let run = env.spawn(async move { receiving.run(reader, &doubler).await });
    Peer { channel, started, run }
}

/// Two peers, with `room` bytes under way in each direction.
fn pair(env: &Env, limits: Limits, budget: u32, room: usize) -> (Peer, Peer) {
    let (near, far) = tokio::io::duplex(room);
    (
        peer(env, Side::Connecting, limits, budget, near),
        peer(env, Side::Accepting, limits, budget, far),
    )
}

async fn double(channel: &Channel, number: u64) -> Result<u64, CallError> {
    channel.call::<u64, u64>(&number, &[]).await.map(|(answer, _)| answer)
}

#[test]
fn calls_go_in_both_directions_and_answers_come_in_any_order() {
    runtime::run(1, |env| async move {
        for room in [1, 7, 4096, 1 << 20] {
            let (near, far) = pair(&env, Limits::default(), 100, room);
            let start = env.now();
            let mut calls = Vec::new();
            for number in (0..20).rev() {
                for channel in [&near.channel, &far.channel] {
                    let (channel, payload) = (channel.clone(), vec![number as u8; 500]);
                    calls.push(env.spawn(async move {
                        let payload = Bytes::from(payload);
                        let (answer, back) = channel
                            .call::<u64, u64>(&number, std::slice::from_ref(&payload))
                            .await
                            .unwrap();
                        assert_eq!((answer, back), (2 * number, payload));
                    }));
                }
            }
            for call in calls {
                assert_eq!(call.await, Some(()));
            }
            // Side by side, not one after the other.
            assert!(env.now().since(start) < Duration::from_millis(25), "{room}");
        }
    });
}

#[test]
fn a_late_answer_is_ignored_and_the_connection_goes_on() {
    runtime::run(2, |env| async move {
        let limits = Limits { calls: 3, ..Limits::default() };
        let (near, _far) = pair(&env, limits, 100, 4096);
        let span = Duration::from_millis(5);
        let late = near.channel.call_within::<u64, u64>(&env, span, &50, &[]).await;
        assert_eq!(late, Err(CallError::Late(span)));
        assert_eq!(double(&near.channel, 4).await, Ok(8));
        env.sleep(Duration::from_millis(60)).await;
        assert_eq!(double(&near.channel, 5).await, Ok(10));
        // Calls that are given up count as long as the peer has not answered them.
        for _ in 0..3 {
            near.channel.call_within::<u64, u64>(&env, span, &50, &[]).await.unwrap_err();
        }
        assert!(matches!(double(&near.channel, 6).await, Err(CallError::Overloaded(_))));
        env.sleep(Duration::from_millis(60)).await;
        assert_eq!(double(&near.channel, 7).await, Ok(14));
    });
}

#[test]
fn an_orderly_end_waits_for_answers_and_then_the_peer_sees_it() {
    runtime::run(3, |env| async move {
        let (near, far) = pair(&env, Limits::default(), 100, 4096);
        let calling = near.channel.clone();
        let call = env.spawn(async move { double(&calling, 30).await });
        env.sleep(Duration::from_millis(1)).await;
        let start = env.now();
        let shutdown = near.channel.clone();
        let ending = env.spawn(async move { shutdown.shutdown().await });
        env.sleep(Duration::from_millis(1)).await;
        assert!(matches!(double(&near.channel, 1).await, Err(CallError::Lost(_))));
        assert_eq!(call.await, Some(Ok(60)));
        assert_eq!(ending.await, Some(()));
        assert!(env.now().since(start) >= Duration::from_millis(28));
        assert!(matches!(far.run.await, Some(Ok(()))));
    });
}

#[test]
fn calls_fail_with_the_connection() {
    runtime::run(4, |env| async move {
        let (near, far) = pair(&env, Limits::default(), 100, 4096);
        let calling = near.channel.clone();
        let call = env.spawn(async move { double(&calling, 1000).await });
        env.sleep(Duration::from_millis(1)).await;
        drop(far);
        near.channel.close("the test is over");
        assert_eq!(call.await, Some(Err(CallError::Lost("the test is over".to_owned()))));
        assert!(double(&near.channel, 1).await.is_err());
    });
}

/// A peer that sends calls and reads no answers is not read from any more, and costs bounded memory.
#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    runtime::run(5, |env| async move {
        let limits = Limits { unread: 10_000, read: 1000, ..Limits::default() };
        let (mut peer_end, near) = tokio::io::duplex(1000);
        let near = peer(&env, Side::Accepting, limits, 1000, near);
        let mut call = BytesMut::new();
        frame::encode(1, &0u64, 100, &mut call).unwrap();
        call.extend_from_slice(&[0; 100]);
        let sent = env.timeout(Duration::from_secs(60), async {
            loop {
                peer_end.write_all(&call).await.unwrap();
            }
        });
        assert_eq!(sent.await, None);
        let started = near.started.load(Ordering::Relaxed);
        assert!((90..130).contains(&started), "{started}");
    });
}

/// No more calls run at a time than the budget covers.
#[test]
fn calls_wait_for_the_budget() {
    runtime::run(6, |env| async move {
        let (near, far) = pair(&env, Limits::default(), 4, 1 << 20);
        let calls: Vec<_> = (0..12)
            .map(|_| {
                let channel = near.channel.clone();
                env.spawn(async move { double(&channel, 10).await })
            })
            .collect();
        env.sleep(Duration::from_millis(5)).await;
        // The fifth is read, and waits.
        assert_eq!(far.started.load(Ordering::Relaxed), 5);
        for call in calls {
            assert_eq!(call.await, Some(Ok(20)));
        }
    });
}

/// Answers with a text of that many bytes.
struct Texts(Channel);

impl Handler for Texts {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let text: String = call.decode().map_err(io::Error::other)?;
        let len: usize = text.parse().map_err(io::Error::other)?;
        self.0.answer(call.id, &"n".repeat(len), &[]);
        self.0.flush_soon();
        Ok(())
    }
}

/// A call that does not fit into a frame fails by itself; such an answer ends the connection.
#[test]
fn what_does_not_fit_into_a_frame_is_not_sent() {
    runtime::run(9, |env| async move {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(far);
        let far = Channel::new(&env, Side::Accepting, Limits::default(), writer);
        let _answering = env.spawn(async move {
            let texts = Texts(far.clone());
            tokio::select! {
                _ = far.run(reader, &texts) => {}
                () = far.closed() => {}
            }
        });
        let near = peer(&env, Side::Connecting, Limits::default(), 1, near);
        let call = async |text: String| {
            near.channel.call::<_, String>(&text, &[]).await.map(|(text, _)| text.len())
        };
        assert!(matches!(call("1".repeat(5000)).await, Err(CallError::TooLarge(_))));
        assert!(matches!(near.channel.tell(&"1".repeat(5000), &[]), Err(CallError::TooLarge(_))));
        assert_eq!(call("4000".to_owned()).await, Ok(4000));
        assert!(matches!(call("5000".to_owned()).await, Err(CallError::Lost(_))));
    });
}

#[test]
fn a_caller_that_the_peer_does_not_read_from_is_refused() {
    runtime::run(7, |env| async move {
        let limits = Limits { queued: 10_000, ..Limits::default() };
        let (near, _far) = tokio::io::duplex(100);
        let (_reader, writer) = tokio::io::split(near);
        let channel = Channel::new(&env, Side::Connecting, limits, writer);
        let payload = [Bytes::from_static(&[0; 1000])];
        let told = (0..20).take_while(|_| channel.tell(&0u64, &payload).is_ok()).count();
        assert_eq!(told, 10);
        assert!(matches!(channel.tell(&0u64, &[]), Err(CallError::Overloaded(_))));
    });
}

/// What a peer must not send ends the connection and fails the calls.
#[test]
fn a_peer_that_violates_the_protocol_is_left() {
    runtime::run(8, |env| async move {
        let frame_of = |id: u64| {
            let mut frame = BytesMut::new();
            frame::encode(id, &"text", 0, &mut frame).unwrap();
            frame.to_vec()
        };
        // An answer to no call, an answer of another type, a call where none is taken, no frame, half a frame.
        let cases =
            [frame_of(77), frame_of(1), frame_of((1 << 63) | 1), vec![0xff; 9], vec![9, 0, 0, 0]];
        for bytes in cases {
            let (near, mut far) = tokio::io::duplex(4096);
            let (reader, writer) = tokio::io::split(near);
            let channel = Channel::new(&env, Side::Connecting, Limits::default(), writer);
            let receiving = channel.clone();
            let run = env.spawn(async move { receiving.run(reader, &NoCalls).await });
            let calling = channel.clone();
            let call = env.spawn(async move { double(&calling, 1).await });
            far.read_u8().await.unwrap();
            far.write_all(&bytes).await.unwrap();
            far.shutdown().await.unwrap();
            assert!(matches!(call.await, Some(Err(CallError::Lost(_)))), "{bytes:?}");
            drop(run);
        }
    });
}

/// A node is killed with its side of a connection: its peer's calls fail, and it holds nothing.
#[test]
fn a_killed_node_leaves_its_peer_alone() {
    runtime::run(9, |env| async move {
        let (near, far) = tokio::io::duplex(4096);
        let near = peer(&env, Side::Connecting, Limits::default(), 10, near);
        let node = env.node();
        let node_env = node.env().clone();
        node.env()
            .spawn(async move {
                let far = peer(&node_env, Side::Accepting, Limits::default(), 10, far);
                drop(far.run.await);
            })
            .detach();
        assert_eq!(double(&near.channel, 1).await, Ok(2));
        let calling = near.channel.clone();
        let call = env.spawn(async move { double(&calling, 1000).await });
        env.sleep(Duration::from_millis(1)).await;
        node.kill();
        assert!(matches!(call.await, Some(Err(CallError::Lost(_)))));
        node.gone().await;
    });
}

#[test]
fn a_side_answers_only_while_its_tenure_holds() {
    runtime::run(1, |env| async move {
        for room in [1, 64 << 10] {
            let (near, far) = pair(&env, Limits::default(), 100, room);
            let tenure = Tenure::new(&env);
            let term = tenure.term();
            let held = far.channel.clone().while_holding(tenure);
            let second = Duration::from_secs(1);
            term.extend(env.now() + second);
            assert_eq!(double(&near.channel, 1).await, Ok(2));
            // Begun while it holds, done later.
            let (channel, start) = (near.channel.clone(), env.now());
            let asking = env.spawn(async move { double(&channel, 1500).await });
            env.sleep(5 * second).await;
            assert!(!asking.is_finished() && far.started.load(Ordering::Relaxed) == 2);
            // Asked while it has run out.
            let (channel, clock) = (near.channel.clone(), env.clone());
            let late = env.spawn(async move { (double(&channel, 0).await, clock.now()) });
            env.sleep(second).await;
            assert!(!late.is_finished());
            term.extend(env.now() + second);
            assert_eq!(asking.await, Some(Ok(3000)));
            let (answer, at) = late.await.unwrap();
            assert_eq!(answer, Ok(0));
            assert!(at.since(start) >= 6 * second);
            env.sleep(2 * second).await;
            // An answer that can never leave does not keep the connection open.
            let asked = env.timeout(second, double(&near.channel, 0)).await;
            assert_eq!(asked, None);
            held.close("it is closed");
            far.channel.drained(0).await;
            drop((held, far));
            assert!(near.run.await.is_some());
        }
    });
}

//! Servers of an image, and standbys that notice by themselves that the server has died.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Node, Tenure, Time};
use thalweg_rados::heartbeat::Serving;
use thalweg_rados::{Opener, RadosKind};
use thalweg_sim::campaign;
use thalweg_sim::rados::{RadosSpec, SimPool, SimRados};
use thalweg_sim::run;
use thalweg_store::device::{Access, DeviceError, DeviceKind, DeviceRef, Purpose};

use crate::kind::{OnePool, opener};

const LEASE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(200);
const OBJECT: u64 = 4 << 20;
const NAME: &str = "p/i";

/// What became of a machine.
#[derive(Default)]
struct Record {
    /// When it had the image open.
    opened: Option<Time>,
    device: Option<DeviceRef>,
    /// When it last could answer.
    answered: Option<Time>,
}

/// A machine with a process that serves the image, or stands by.
struct Machine {
    node: Node,
    pool: Arc<SimPool>,
    record: Arc<Mutex<Record>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Opens the image as a mount does.
    Plain,
    Serves,
    StandsBy,
    /// The same, with messages of which each takes its time.
    StandsBySlowly,
}

impl Machine {
    fn start(env: &Env, cluster: &SimRados, name: &str, role: Role) -> Machine {
        let (node, pool) = (env.node(), cluster.client());
        let own = node.env().clone();
        let tenure = Tenure::new(&own);
        let opener = Opener { machine: name.to_owned(), host: name.to_owned(), ..opener(true) };
        let kind = RadosKind::new(&own, Arc::new(OnePool(pool.store())), opener);
        let stands_by = matches!(role, Role::StandsBy | Role::StandsBySlowly);
        let serving = Serving { lease: LEASE, tenure: tenure.clone(), stands_by };
        let kind = if role == Role::Plain { kind } else { kind.serving(serving) };
        let record = Arc::<Mutex<Record>>::default();
        let (noting, delayed, clock) = (record.clone(), pool.clone(), own.clone());
        let working = async move {
            let mut rng = clock.rng();
            let device = loop {
                if role == Role::StandsBySlowly {
                    let most = if rng.random_bool(0.5) { 1 } else { 2000 };
                    delayed.delay(Duration::from_millis(rng.random_range(0..most)));
                }
                match kind.open(NAME, Access::Exclusive, None).await {
                    Ok(device) => break device,
                    Err(DeviceError::Locked { .. }) => clock.sleep(LOOK).await,
                    Err(error) => panic!("{error}"),
                }
            };
            delayed.delay(Duration::ZERO);
            let begun = Record { opened: Some(clock.now()), device: Some(device), answered: None };
            *noting.lock() = begun;
            loop {
                if tenure.holds() {
                    noting.lock().answered = Some(clock.now());
                }
                clock.sleep(Duration::from_millis(20)).await;
            }
        };
        own.spawn(working).detach();
        Machine { node, pool, record }
    }

    fn opened(&self) -> Option<Time> {
        self.record.lock().opened
    }

    fn answered(&self) -> Time {
        self.record.lock().answered.unwrap()
    }

    fn device(&self) -> DeviceRef {
        self.record.lock().device.clone().unwrap()
    }

    async fn write(&self, object: u64, fill: u8) -> Result<(), DeviceError> {
        let data = vec![vec![fill; 4096].into()];
        self.device().write(object * OBJECT, data, Purpose::UserData).await
    }

    async fn byte(&self, object: u64) -> u8 {
        self.device().read(object * OBJECT, 4096, Purpose::UserData).await.unwrap()[0]
    }
}

/// An image, and a machine that has it open.
async fn scene(env: &Env, role: Role) -> (SimRados, Machine) {
    let cluster = SimRados::new(env, RadosSpec::default());
    let making =
        RadosKind::new(env, Arc::new(OnePool(cluster.client().store())), Opener::this_process());
    making.create(NAME, 16 * OBJECT, None).await.unwrap();
    let first = Machine::start(env, &cluster, "first", role);
    env.sleep(Duration::from_secs(1)).await;
    first.write(0, 1).await.unwrap();
    (cluster, first)
}

/// Waits until a standby has taken over, and checks that the machine before it answers nothing from then on, and changes
/// nothing.
async fn takes_over(env: &Env, old: &Machine, standby: &Machine) {
    env.sleep(6 * LEASE).await;
    let opened = standby.opened().unwrap();
    assert!(old.answered() < opened, "{:?}, {opened:?}", old.answered());
    assert_eq!(standby.byte(0).await, 1);
    standby.write(0, 2).await.unwrap();
    env.sleep(5 * LEASE).await;
    assert!(old.answered() < opened, "{:?}, {opened:?}", old.answered());
    assert!(old.write(1, 9).await.is_err());
    assert_eq!((standby.byte(0).await, standby.byte(1).await), (2, 0));
    let ago = env.now().since(standby.answered());
    assert!(ago < Duration::from_secs(1), "its own beats go on: {ago:?}");
}

#[test]
fn a_standby_takes_over_from_a_server_that_died() {
    run(1, |env| async move {
        let (cluster, first) = scene(&env, Role::Serves).await;
        let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
        env.sleep(5 * LEASE).await;
        assert_eq!(standby.opened(), None, "the server is alive");
        let died = env.now();
        first.node.kill();
        takes_over(&env, &first, &standby).await;
        let took = standby.opened().unwrap().since(died);
        assert!(took > LEASE / 2 && took < LEASE + Duration::from_secs(2), "{took:?}");
    });
}

#[test]
fn a_server_that_was_paused_answers_nothing_when_it_wakes() {
    run(2, |env| async move {
        let (cluster, first) = scene(&env, Role::Serves).await;
        let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
        env.sleep(LEASE).await;
        first.node.pause();
        env.sleep(2 * LEASE).await;
        let opened = standby.opened().unwrap();
        // It does not know yet, and its first request may be a write.
        first.node.resume();
        let (late, ()) = futures::join!(first.write(1, 9), env.sleep(Duration::from_millis(1)));
        assert!(late.is_err(), "{late:?}");
        assert!(first.answered() < opened);
        takes_over(&env, &first, &standby).await;
    });
}

#[test]
fn a_server_without_a_network_answers_nothing_before_a_standby_does() {
    run(3, |env| async move {
        let (cluster, first) = scene(&env, Role::Serves).await;
        let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
        env.sleep(LEASE).await;
        first.pool.delay(3 * LEASE);
        // It arrives after the take-over, at an object that the new server does not write.
        let writing = env.spawn({
            let device = first.device();
            async move { device.write(OBJECT, vec![vec![9; 4096].into()], Purpose::UserData).await }
        });
        takes_over(&env, &first, &standby).await;
        assert!(matches!(writing.await, Some(Err(DeviceError::Fenced { .. }))));
    });
}

#[test]
fn one_of_two_standbys_takes_over_and_then_the_other_one() {
    for seed in campaign::seeds(10) {
        run(seed, |env| async move {
            let (cluster, first) = scene(&env, Role::Serves).await;
            let standbys =
                ["a", "b"].map(|name| Machine::start(&env, &cluster, name, Role::StandsBySlowly));
            env.sleep(LEASE).await;
            first.node.kill();
            env.sleep(8 * LEASE).await;
            let opened = standbys.each_ref().map(|standby| standby.opened().is_some());
            assert!(opened[0] != opened[1], "{opened:?}");
            let [winner, other] = match opened[0] {
                true => [&standbys[0], &standbys[1]],
                false => [&standbys[1], &standbys[0]],
            };
            winner.write(0, 1).await.unwrap();
            winner.node.kill();
            takes_over(&env, winner, other).await;
        });
    }
}

#[test]
fn beats_that_are_late_keep_the_image() {
    for seed in campaign::seeds(10) {
        run(seed, |env| async move {
            let (cluster, first) = scene(&env, Role::Serves).await;
            let standby = Machine::start(&env, &cluster, "standby", Role::StandsBySlowly);
            let mut rng = env.rng();
            for _ in 0..40 {
                first.pool.delay(LEASE.mul_f64(rng.random_range(0.0..0.45)));
                env.sleep(LEASE / 2).await;
            }
            assert_eq!(standby.opened(), None);
            first.pool.delay(Duration::ZERO);
            env.sleep(LEASE).await;
            first.write(1, 1).await.unwrap();
            assert!(env.now().since(first.answered()) < Duration::from_secs(1));
        });
    }
}

#[test]
fn a_lock_without_beats_is_never_broken() {
    run(4, |env| async move {
        let (cluster, first) = scene(&env, Role::Plain).await;
        let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
        env.sleep(5 * LEASE).await;
        assert_eq!(standby.opened(), None);
        first.write(0, 1).await.unwrap();
        first.device().flush(Purpose::UserData).await.unwrap();
    });
}

#[test]
fn beats_of_an_earlier_server_do_not_count_for_a_mount() {
    run(5, |env| async move {
        let (cluster, first) = scene(&env, Role::Serves).await;
        first.node.kill();
        let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
        env.sleep(2 * LEASE).await;
        assert!(standby.opened().is_some());
        standby.node.kill();
        let kind = RadosKind::new(
            &env,
            Arc::new(OnePool(cluster.client().store())),
            Opener { machine: "mount".to_owned(), ..opener(true) },
        );
        kind.break_lock(NAME).await.unwrap();
        let mount = kind.open(NAME, Access::Exclusive, None).await.unwrap();
        let standby = Machine::start(&env, &cluster, "other", Role::StandsBy);
        env.sleep(3 * LEASE).await;
        assert_eq!(standby.opened(), None);
        mount.flush(Purpose::UserData).await.unwrap();
    });
}

/// The last beat arrives when the standby is about to claim the image, and then the network of the server is cut.
async fn a_last_beat(env: Env, pause: Duration) {
    let (cluster, first) = scene(&env, Role::Serves).await;
    let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
    standby.pool.delay(Duration::from_millis(500));
    env.sleep(2 * LEASE).await;
    first.node.pause();
    env.sleep(pause).await;
    first.node.resume();
    env.sleep(Duration::from_millis(50)).await;
    first.pool.delay(100 * LEASE);
    env.sleep(2 * LEASE).await;
    takes_over(&env, &first, &standby).await;
}

#[test]
fn a_claim_that_comes_after_another_beat_is_refused() {
    for step in 0..40 {
        run(step, |env| a_last_beat(env, LEASE.mul_f64(0.8 + step as f64 / 40.0)));
    }
}

/// The standby's messages are slow until the network of the server is cut, so that a beat may come while one of them is
/// under way.
async fn a_beat_on_the_way(env: Env, cut: Duration) {
    let (cluster, first) = scene(&env, Role::Serves).await;
    let standby = Machine::start(&env, &cluster, "standby", Role::StandsBy);
    standby.pool.delay(Duration::from_secs(3));
    env.sleep(2 * LEASE + cut).await;
    first.pool.delay(100 * LEASE);
    standby.pool.delay(Duration::ZERO);
    takes_over(&env, &first, &standby).await;
}

#[test]
fn silence_begins_with_the_answer_that_shows_a_beat() {
    for step in 0..80 {
        run(step, |env| a_beat_on_the_way(env, Duration::from_millis(300) * step as u32));
    }
}

/// A server that is paused, whose messages are late, and that ends in one of three ways, at any time.
async fn stumbles_and_ends(env: Env) {
    let (cluster, first) = scene(&env, Role::Serves).await;
    let standby = Machine::start(&env, &cluster, "standby", Role::StandsBySlowly);
    let mut rng = env.rng();
    let end = rng.random_range(0..3);
    for _ in 0..rng.random_range(1..4) {
        first.pool.delay(LEASE.mul_f64(rng.random_range(0.0..0.4)));
        env.sleep(LEASE.mul_f64(rng.random_range(0.0..1.0))).await;
        first.node.pause();
        env.sleep(LEASE.mul_f64(rng.random_range(0.0..1.0))).await;
        if rng.random_bool(0.3) {
            first.pool.delay(LEASE * 100);
        }
        first.node.resume();
        env.sleep(LEASE.mul_f64(rng.random_range(0.0..0.5))).await;
    }
    match end {
        0 => first.node.kill(),
        1 => first.pool.delay(LEASE * 100),
        _ => {
            first.node.pause();
            env.sleep(8 * LEASE).await;
            first.node.resume();
        }
    }
    takes_over(&env, &first, &standby).await;
}

#[test]
fn no_server_answers_after_a_take_over() {
    for seed in campaign::seeds(100) {
        run(seed, stumbles_and_ends);
    }
}

//! Devices that die at any point of a change: the volume is there when they are back, and the change can be
//! repeated.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_sim::faults::Faulty;
use thalweg_sim::media::SimMedia;
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, Lba};
use thalweg_store::pool::{Media, Pool};

use super::history::{BLOCKS, Layout, Op, Parts, open, path, perform, write};
use crate::support::read_all;

/// Most requests of one device in one change.
const MOST: usize = 2_000;

async fn compare(pool: &Pool, model: &BlockModel, place: &str) {
    let chain = pool.chain();
    let blocks = read_all(chain, chain.now()).await;
    let blocks = blocks.unwrap_or_else(|error| panic!("{place}: {error}"));
    let read = |lba: Lba| blocks.get(lba.0 as usize).cloned().flatten();
    let checked = model.check(model.now(), model.now(), read);
    checked.unwrap_or_else(|error| panic!("{place}: {error}"));
}

/// The device called `victim` dies after `count` requests of `op`; returns whether `op` succeeded all the
/// same.
async fn dies(env: &Env, layout: &Layout, op: &Op, victim: &str, count: usize) -> bool {
    let place = format!("{op:?}, {victim} dies after {count} requests");
    let media = Arc::new(SimMedia::recorded(&Recorder::new(env), layout.sector));
    let mut pool = None;
    perform(env, &media, &mut pool, layout, &Op::Create).await.unwrap();
    drop(pool.take());
    let victim = path(victim);
    if media.find(&victim).await.unwrap().is_none() {
        media.create(&victim, layout.link_bytes(""), None).await.unwrap();
    }
    let mut faults = None;
    let wrapped = media.wrap(&victim, |device| {
        let (faulty, control) = Faulty::wrap(env, device);
        faults = Some(control);
        faulty
    });
    wrapped.await.unwrap();
    let faults = faults.unwrap();
    pool = Some(open(env, &media).await.unwrap());
    let mut model = BlockModel::new(2 * BLOCKS);
    write(pool.as_ref().unwrap(), &mut model, 20, &mut env.rng()).await;
    faults.die_after(count);
    let done = perform(env, &media, &mut pool, layout, op).await.is_ok();
    drop(pool.take());
    faults.heal();
    let opened = open(env, &media).await;
    pool = Some(opened.unwrap_or_else(|error| panic!("{place}: {error}")));
    compare(pool.as_ref().unwrap(), &model, &place).await;
    let again = perform(env, &media, &mut pool, layout, op).await;
    again.unwrap_or_else(|error| panic!("{place}: again: {error}"));
    compare(pool.as_ref().unwrap(), &model, &place).await;
    done
}

/// At increasing counts, until the change is over before the device dies.
fn whenever(layout: &Layout, op: &Op, victims: &[&str]) {
    let mut all = 0;
    for victim in victims {
        let mut failed = 0;
        let mut count = 0;
        while count < MOST {
            let (layout, op, victim) = (layout.clone(), op.clone(), (*victim).to_owned());
            let work = |env| async move { dies(&env, &layout, &op, &victim, count).await };
            match run(count as u64, work) {
                // Mirrors go on without it.
                true => count += 40,
                false => failed += 1,
            }
            // Labels and manifest are written at the beginning of a change.
            count += 1 + count / 30;
        }
        println!("{op:?}, {victim}: {failed} times");
        all += failed;
    }
    assert!(all > 10, "the change failed {all} times alone");
}

#[test]
fn a_device_dies_while_a_link_is_added_or_replaced() {
    let layout = Layout { links: Parts::Plain, map_sides: 1, cache: false, sector: 512 };
    whenever(&layout, &Op::Extend(path("c")), &["m", "c", "a"]);
    whenever(&layout, &Op::Replace(path("a"), path("c")), &["m", "c", "b"]);
}

#[test]
fn a_device_dies_while_a_side_is_replaced() {
    let layout = Layout { links: Parts::Mirror, map_sides: 2, cache: false, sector: 512 };
    whenever(&layout, &Op::Replace(path("a"), path("d")), &["a", "b", "d", "m"]);
}

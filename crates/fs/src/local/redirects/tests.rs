//! Redirects, compared with a table of all bytes.

use rand::RngExt;
use thalweg_env::Rng;
use thalweg_sim::run;

use super::*;

const UNIT: u64 = 64;
const FILE: u64 = 500;

/// Where each byte of a file is, and what waits to be durable.
struct Model {
    places: Vec<Option<u64>>,
    waiting: Vec<u64>,
}

impl Model {
    /// The bytes of objects that are used.
    fn live(&self) -> HashMap<u64, u64> {
        let mut live = HashMap::default();
        for at in self.places.iter().flatten().chain(&self.waiting) {
            *live.entry(at / UNIT).or_default() += 1;
        }
        live
    }
}

fn check(redirects: &Redirects, model: &Model) {
    for start in [0, 13, 250, 499] {
        let mut at = start;
        for Piece { range, aside } in redirects.pieces(7, start..FILE) {
            assert_eq!(range.start, at);
            for byte in range.clone() {
                let place = aside.map(|aside| aside + (byte - range.start));
                assert_eq!(place, model.places[byte as usize], "byte {byte}");
            }
            at = range.end;
        }
        assert_eq!(at, FILE);
    }
    let state = redirects.state.lock();
    assert_eq!(state.live, model.live());
    let bytes = model.places.iter().flatten().count() as u64;
    let file = state.files.get(&7).map(|file| file.redirects.clone()).unwrap_or_default();
    assert_eq!((state.count, state.bytes), (file.len(), bytes));
    assert!(state.unused.iter().all(|object| !state.live.contains_key(object)));
}

/// Random changes, compared with a table of all bytes.
#[test]
fn each_byte_is_where_it_was_put_last() {
    for seed in 0..30 {
        run(seed, |env| async move { random_changes(env.rng()) });
    }
}

fn random_changes(mut rng: Rng) {
    let redirects = Arc::new(Redirects::new(UNIT, 0..0, Vec::new(), Time::default()));
    let mut model = Model { places: vec![None; FILE as usize], waiting: Vec::new() };
    let mut records = BTreeMap::new();
    for _ in 0..200 {
        let mut ranges = Vec::new();
        for _ in 0..rng.random_range(1..4) {
            let start = rng.random_range(0..FILE);
            ranges.push(start..rng.random_range(start..=FILE.min(start + 90)));
        }
        let len = ranges.iter().map(|range| range.end - range.start).sum();
        let is_placed = rng.random_bool(0.3);
        let aside = (!is_placed).then(|| {
            loop {
                match redirects.take(rng.random_range(0..3), len) {
                    Some(aside) => break aside,
                    None => redirects.set_bounds(redirects.raised(len)),
                }
            }
        });
        if rng.random_bool(0.1) {
            // The batch fails.
            drop(aside);
            check(&redirects, &model);
            continue;
        }
        let mut next = aside.as_ref().map(Aside::start);
        let ranges: Vec<_> = ranges
            .into_iter()
            .map(|range| {
                let at = next;
                next = next.map(|at| at + (range.end - range.start));
                (range, at)
            })
            .collect();
        let change = redirects.plan(7, ranges.iter().cloned());
        for (key, value) in change.records() {
            match value {
                Some(value) => drop(records.insert(key, value)),
                None => drop(records.remove(&key).expect("a record that goes is there")),
            }
        }
        redirects.commit(&change, Time::default());
        drop(aside);
        for (range, at) in ranges {
            for byte in range.clone() {
                let place = at.map(|at| at + (byte - range.start));
                let before = std::mem::replace(&mut model.places[byte as usize], place);
                model.waiting.extend(before);
            }
        }
        check(&redirects, &model);
        if rng.random_bool(0.3) {
            redirects.last_freed().into_iter().for_each(|last| redirects.release(last));
            model.waiting.clear();
            check(&redirects, &model);
        }
    }
    model.waiting.clear();
    check_again(&redirects, &model, &records);
}

/// The next opening finds the same in the records, and that all other objects are to be removed.
fn check_again(redirects: &Redirects, model: &Model, records: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let found = records.iter().map(|(key, value)| match parse_redirect(key, value) {
        Some(Parsed::Redirect(ino, offset, redirect)) => (ino, offset, redirect),
        other => panic!("{other:?}"),
    });
    let bounds = redirects.state.lock().bounds.clone();
    let again = Redirects::new(UNIT, bounds.clone(), found.collect(), Time::default());
    check(&again, model);
    let live = model.live();
    let unused = again.take_unused().into_iter().map(|it| it.start / UNIT);
    assert!(unused.eq(bounds.filter(|object| !live.contains_key(object))));
}

#[test]
fn objects_go_when_nothing_of_them_is_used() {
    let redirects = Arc::new(Redirects::new(UNIT, 0..9, Vec::new(), Time::default()));
    let unused = || redirects.take_unused().iter().map(|it| (it.start, it.end)).collect::<Vec<_>>();
    redirects.state.lock().unused.clear();
    redirects.state.lock().next = 0;
    let one = redirects.take(0, 40).unwrap();
    let other = redirects.take(1, 64).unwrap();
    assert_eq!((one.start(), one.absent_from(), other.start()), (0, 0, 64));
    let second = redirects.take(0, 20).unwrap();
    assert_eq!((second.start(), second.absent_from()), (40, u64::MAX));
    drop(second);
    assert!(unused().is_empty(), "an object that is being filled stays");
    drop(one);
    assert_eq!(unused(), vec![(0, 64)], "unless nothing of it is used");
    drop(other);
    assert_eq!(unused(), vec![(64, 128)]);
    let third = redirects.take(0, 40).unwrap();
    let fourth = redirects.take(0, 130).unwrap();
    assert_eq!((third.start(), fourth.start()), (128, 192), "what does not fit has its own object");
    drop(third);
    assert_eq!(unused(), vec![(128, 192)], "and the one before goes");
    assert!(redirects.take(2, 400).is_none(), "the bound is raised first");
    assert_eq!(redirects.raised(400), 3..6 + 7 + OBJECTS_AHEAD);
}

#[test]
fn invalid_records_are_noticed() {
    let sound = redirect_record(Redirect { len: 9, at: 0 });
    let parsed = parse_redirect(&redirect_key(3, 5), &sound);
    assert_eq!(parsed, Some(Parsed::Redirect(3, 5, Redirect { len: 9, at: 0 })));
    assert_eq!(parse_redirect(&bounds_key(), &bounds_record(&(2..7))), Some(Parsed::Bounds(2..7)));
    for (len, at) in [(0, 0), (LONGEST + 1, 0), (9, u64::MAX - 3)] {
        let record = redirect_record(Redirect { len, at });
        assert_eq!(parse_redirect(&redirect_key(3, 5), &record), None);
    }
    assert_eq!(parse_redirect(&bounds_key(), &bounds_record(&Range { start: 7, end: 2 })), None);
    assert_eq!(parse_redirect(&redirect_key(3, 5)[..20], &sound), None);
    assert_eq!(parse_redirect(&redirect_key(3, u64::MAX), &sound), None);
}

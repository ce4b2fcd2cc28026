//! Each rule of the medium, on small logs.

use std::collections::BTreeSet;

use bytes::Bytes;
use thalweg_store::device::Geometry;

use super::*;
use crate::log::{Origin, Payload};
use Event::{FlushBegan, FlushEnded, Mark, WriteBegan, WriteEnded};

/// A log of two devices with writes given as (device, first sector, one byte for each sector).
fn log(writes: &[(usize, u64, &[u8])], events: &[Event]) -> Arc<Log> {
    let geometry = Geometry { size: 8192, sector: 512 };
    let origin = |name: &str| Origin { name: name.to_owned(), geometry, content: Content::new() };
    let change = |(device, first, bytes): &(usize, u64, &[u8])| {
        let data: Vec<_> = bytes.iter().map(|byte| Bytes::from(vec![*byte; 512])).collect();
        let len = data.len() as u64 * 512;
        let payload = Payload::Data(data);
        Arc::new(Change { device: *device, offset: first * 512, len, payload })
    };
    Arc::new(Log {
        origins: vec![origin("a"), origin("b")],
        changes: writes.iter().map(change).collect(),
        events: events.to_vec(),
        ..Log::default()
    })
}

/// The first bytes of the first three sectors of both devices.
fn state(image: &CrashImage) -> [[u8; 3]; 2] {
    let device = |i: usize| {
        let content = image.disks[i].content();
        std::array::from_fn(|sector| {
            let bytes = content.read(sector as u64 * 512, 512);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is whole");
            bytes[0]
        })
    };
    [device(0), device(1)]
}

fn plenty(points: Points) -> Policy {
    let many = 400;
    Policy {
        points,
        exhaustive: 0,
        prefixes: 9,
        missing: 9,
        subsets: many,
        torn: many,
        shuffled: many,
    }
}

/// Every state of the first device at a point.
fn states(log: &Arc<Log>, point: usize, policy: &Policy) -> BTreeSet<[u8; 3]> {
    let policy = policy.clone().at(Points::At(vec![point]));
    let images = Images::new(Arc::clone(log), &mut Rng::seed_from_u64(1), &policy);
    images.map(|image| state(&image)[0]).collect()
}

fn flush(flush: usize, device: usize) -> [Event; 2] {
    [FlushBegan { flush, device }, FlushEnded { flush, device }]
}

#[test]
fn a_write_is_durable_once_a_flush_that_began_after_its_end_has_ended() {
    let [begin, end] = flush(0, 0);
    let log = log(&[(0, 0, &[1])], &[WriteBegan(0), WriteEnded(0), begin, end]);
    let policy = plenty(Points::Every);
    assert_eq!(states(&log, 0, &policy), [[0, 0, 0]].into());
    for point in 1..4 {
        assert_eq!(states(&log, point, &policy), [[0, 0, 0], [1, 0, 0]].into());
    }
    assert_eq!(states(&log, 4, &policy), [[1, 0, 0]].into());
}

#[test]
fn a_flush_leaves_out_what_had_not_ended_when_it_began_and_other_devices() {
    let [begin, end] = flush(0, 0);
    let policy = plenty(Points::Every);
    let late = log(&[(0, 0, &[1])], &[WriteBegan(0), begin, WriteEnded(0), end]);
    assert_eq!(states(&late, 4, &policy), [[0, 0, 0], [1, 0, 0]].into());
    let [begin, end] = flush(0, 1);
    let other = log(&[(0, 0, &[1])], &[WriteBegan(0), WriteEnded(0), begin, end]);
    assert_eq!(states(&other, 4, &policy), [[0, 0, 0], [1, 0, 0]].into());
}

#[test]
fn overwritten_versions_survive_independently_in_every_sector() {
    let writes: [(usize, u64, &[u8]); 3] = [(0, 0, &[1, 1]), (0, 0, &[2, 2, 2]), (0, 1, &[3, 3])];
    let [begin, end] = flush(0, 0);
    let events = [
        [WriteBegan(0), WriteEnded(0), begin, end],
        [WriteBegan(1), WriteEnded(1), WriteBegan(2), WriteEnded(2)],
    ];
    let log = log(&writes, &events.concat());
    let mut expected = BTreeSet::new();
    for first in [1, 2] {
        for second in [1, 2, 3] {
            for third in [0, 2, 3] {
                expected.insert([first, second, third]);
            }
        }
    }
    assert_eq!(states(&log, 8, &plenty(Points::Every)), expected);
    let whole = Policy { torn: 0, shuffled: 0, ..plenty(Points::Every) };
    let expected = [[1, 1, 0], [2, 2, 2], [1, 3, 3], [2, 3, 3]].into();
    assert_eq!(states(&log, 8, &whole), expected, "whole writes in order");
}

#[test]
fn the_older_of_two_whole_writes_may_win() {
    let writes: [(usize, u64, &[u8]); 2] = [(0, 0, &[2, 2]), (0, 1, &[3, 3])];
    let log = log(&writes, &[WriteBegan(0), WriteEnded(0), WriteBegan(1), WriteEnded(1)]);
    let states = |shape: fn(u64) -> Shape| -> BTreeSet<_> {
        (0..200).map(|seed| state(&CrashImage::at(&log, 4, shape(seed)))[0]).collect()
    };
    let in_order = [[0, 0, 0], [2, 2, 0], [0, 3, 3], [2, 3, 3]].into();
    assert_eq!(states(Shape::Subset), in_order);
    assert_eq!(states(Shape::Shuffled), &in_order | &[[2, 2, 3]].into());
}

#[test]
fn every_subset_is_made_of_few_writes_and_prefixes_and_gaps_of_many() {
    let writes: [(usize, u64, &[u8]); 3] = [(0, 0, &[1]), (1, 0, &[2]), (0, 2, &[3])];
    let events: Vec<_> = (0..3).flat_map(|i| [WriteBegan(i), WriteEnded(i)]).collect();
    let log = log(&writes, &events);
    let shapes = |exhaustive| {
        let policy =
            Policy { exhaustive, subsets: 0, torn: 0, shuffled: 0, ..plenty(Points::At(vec![6])) };
        let images = Images::new(Arc::clone(&log), &mut Rng::seed_from_u64(1), &policy);
        images.map(|image| state(&image)).collect::<Vec<_>>()
    };
    let all = shapes(3);
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (8, 8));
    let few: BTreeSet<_> = shapes(0).into_iter().collect();
    let expected = [
        [[0, 0, 0], [0, 0, 0]],
        [[1, 0, 0], [0, 0, 0]],
        [[1, 0, 0], [2, 0, 0]],
        [[1, 0, 3], [2, 0, 0]],
        [[0, 0, 3], [2, 0, 0]],
        [[1, 0, 3], [0, 0, 0]],
    ];
    assert_eq!(few, expected.into());
}

#[test]
fn marks_before_the_crash_are_acknowledged() {
    let events = [Mark(5), WriteBegan(0), Mark(6), WriteEnded(0), Mark(7)];
    let log = log(&[(0, 0, &[1])], &events);
    let marks = |point| {
        let image = CrashImage::at(&log, point, Shape::Nothing);
        image.acknowledged().collect::<Vec<_>>()
    };
    assert_eq!(
        (marks(0), marks(2), marks(3), marks(5)),
        (vec![], vec![5], vec![6, 5], vec![7, 6, 5])
    );
}

#[test]
fn an_image_is_made_again_from_its_point_and_shape() {
    let writes: Vec<_> = (0..12u64).map(|i| (i as usize % 2, i % 3, &[7u8, 8][..])).collect();
    let mut events = Vec::new();
    for i in 0..12 {
        events.extend([WriteBegan(i), WriteEnded(i)]);
        if i % 5 == 4 {
            events.extend(flush(i, i % 2));
        }
    }
    let log = log(&writes, &events);
    let images =
        Images::new(Arc::clone(&log), &mut Rng::seed_from_u64(2), &plenty(Points::Flushes));
    let mut points = BTreeSet::new();
    for image in images.step_by(7) {
        points.insert(image.point());
        let again = CrashImage::at(&log, image.point(), image.shape());
        assert_eq!(state(&again), state(&image), "{}", image.describe());
        assert_eq!(image.devices[1].name(), "b");
    }
    assert_eq!(points, [11, 12, 23, 24, 28].into());
}

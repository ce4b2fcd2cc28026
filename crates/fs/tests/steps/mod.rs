//! Random calls on two filesystems that must answer alike, and the comparison of everything in them.

#![allow(dead_code, unreachable_pub)]

pub mod aim;
mod apply;
mod compare;

use proptest::prelude::*;
use thalweg_fs::{Attributes, FsError, Ino, Kind};

pub use apply::apply;
pub use compare::compare;

/// A call; inodes and names are chosen by number among the existing ones.
#[derive(Clone, Debug)]
pub enum Step {
    Lookup(usize, u8),
    Attributes(usize),
    Create(usize, u8, u8, u16),
    Link(usize, usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Rename((usize, u8), (usize, u8), u8),
    Write(usize, u64, usize, bool),
    Append(usize, usize),
    Read(usize, u64, usize),
    Resize(usize, u64),
    Allocate(usize, u64, u64, u8),
    Copy((usize, u64), (usize, u64), u64),
    Seek(usize, u64, bool),
    Set(usize, u16, u8),
    SetXattr(usize, u8, usize, u8),
    RemoveXattr(usize, u8),
    SetAcl(usize, bool, u16, bool),
}

impl Step {
    /// The numbers of the inodes that it names.
    pub fn inodes(&self) -> Vec<usize> {
        match *self {
            Step::Lookup(ino, _)
            | Step::Attributes(ino)
            | Step::Create(ino, ..)
            | Step::Unlink(ino, _)
            | Step::Rmdir(ino, _)
            | Step::Write(ino, ..)
            | Step::Append(ino, _)
            | Step::Read(ino, ..)
            | Step::Resize(ino, _)
            | Step::Allocate(ino, ..)
            | Step::Seek(ino, ..)
            | Step::Set(ino, ..)
            | Step::SetXattr(ino, ..)
            | Step::RemoveXattr(ino, _)
            | Step::SetAcl(ino, ..) => vec![ino],
            Step::Link(one, two, _)
            | Step::Rename((one, _), (two, _), _)
            | Step::Copy((one, _), (two, _), _) => vec![one, two],
        }
    }
}

/// Offsets within a block, near the ends of blocks, and far away.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..100_000u64,
        2 => (0..20u64).prop_map(|block| block * 4096),
        1 => (0..1000u64).prop_map(|at| (1 << 33) + at * 777),
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..200usize, 3 => 1..20_000usize, 1 => (0..10usize).prop_map(|n| n * 4096)]
}

/// Numbers of inodes.
pub fn ino() -> impl Strategy<Value = usize> {
    any::<prop::sample::Index>().prop_map(|it| it.index(1 << 16))
}

/// Numbers of names.
const NAMES: u8 = 14;

/// The name with a number.
pub fn name(number: u8) -> Vec<u8> {
    match number {
        0 => vec![b'n'; 255],
        1 => vec![b'n'; 256],
        2 => b"..".to_vec(),
        _ => format!("name {number}").into_bytes(),
    }
}

/// A random call.
pub fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES;
    prop_oneof![
        3 => (ino(), name()).prop_map(|(d, n)| Step::Lookup(d, n)),
        2 => ino().prop_map(Step::Attributes),
        12 => (ino(), name(), 0..10u8, 0..0o10000u16).prop_map(|(d, n, k, m)| Step::Create(d, n, k, m)),
        3 => (ino(), ino(), name()).prop_map(|(i, d, n)| Step::Link(i, d, n)),
        4 => (ino(), name()).prop_map(|(d, n)| Step::Unlink(d, n)),
        2 => (ino(), name()).prop_map(|(d, n)| Step::Rmdir(d, n)),
        6 => ((ino(), name()), (ino(), name()), 0..3u8).prop_map(|(f, t, h)| Step::Rename(f, t, h)),
        12 => (ino(), offset(), len(), any::<bool>()).prop_map(|(i, o, l, c)| Step::Write(i, o, l, c)),
        4 => (ino(), len()).prop_map(|(i, l)| Step::Append(i, l)),
        4 => (ino(), offset(), len()).prop_map(|(i, o, l)| Step::Read(i, o, l)),
        5 => (ino(), offset()).prop_map(|(i, s)| Step::Resize(i, s)),
        6 => (ino(), offset(), 0..300_000u64, 0..5u8).prop_map(|(i, o, l, h)| Step::Allocate(i, o, l, h)),
        2 => ((ino(), offset()), (ino(), offset()), 0..50_000u64).prop_map(|(f, t, l)| Step::Copy(f, t, l)),
        3 => (ino(), offset(), any::<bool>()).prop_map(|(i, o, d)| Step::Seek(i, o, d)),
        3 => (ino(), any::<u16>(), any::<u8>()).prop_map(|(i, m, w)| Step::Set(i, m, w)),
        3 => (ino(), 0..6u8, 0..5000usize, 0..3u8).prop_map(|(i, n, l, h)| Step::SetXattr(i, n, l, h)),
        2 => (ino(), 0..6u8).prop_map(|(i, n)| Step::RemoveXattr(i, n)),
        3 => (ino(), any::<bool>(), 0..512u16, any::<bool>()).prop_map(|(i, d, m, n)| Step::SetAcl(i, d, m, n)),
    ]
}

/// An inode in both filesystems.
pub type Twin = (Ino, Ino);

/// Numbers from here on are those of certain inodes.
const EXACT: usize = 1 << 20;

/// The inode with a number among the known ones; the first ones are chosen more often.
pub fn pick(twins: &[Twin], number: usize) -> Twin {
    if number >= EXACT {
        return twins[number - EXACT];
    }
    let among = if number.is_multiple_of(3) { twins.len().min(4) } else { twins.len() };
    twins[number % among]
}

/// An answer, without the parts in which the two may differ.
pub type Answer = Result<String, String>;

/// What is compared of an answer.
pub fn answer<T>(result: Result<T, FsError>, show: impl FnOnce(T) -> String) -> Answer {
    match result {
        Ok(done) => Ok(show(done)),
        Err(FsError::Invalid(_)) => Err("Invalid".to_owned()),
        Err(error) => Err(format!("{error:?}")),
    }
}

/// Removes from attributes what differs by nature.
pub type Normalize = fn(Attributes) -> Attributes;

/// What is compared of attributes.
pub fn shown(found: thalweg_fs::Answer, normalize: Normalize) -> String {
    let attributes = normalize(found.attributes);
    let size = if attributes.kind == Kind::Directory { 0 } else { attributes.size };
    format!("{:?}", Attributes { ino: Ino(0), size, ..attributes })
}

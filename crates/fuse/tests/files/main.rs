//! A mounted filesystem, as its users see it.

#![allow(clippy::unwrap_used)]

mod away;
#[path = "../common/busy.rs"]
mod busy;
mod coherence;
mod content;
mod differential;
mod foreign;
mod journal_modes;
mod levels;
mod locks;
mod mapping;
mod names;
mod pages;
mod partial_pages;
mod rig;
mod shared;
#[path = "../common/tools.rs"]
mod tools;
mod unmounting;
mod users;

/// Runs every suite over one kind of filesystem.
macro_rules! suites {
    ($kind:ident, $make:expr, [$($suite:ident :: $test:ident),* $(,)?]) => {
        mod $kind {
            $(#[test]
            fn $test() {
                crate::$suite::$test($make);
            })*
        }
    };
}

macro_rules! all_suites {
    ($kind:ident, $make:expr) => {
        suites!(
            $kind,
            $make,
            [
                names::names_come_and_go,
                names::renames_replace_or_exchange,
                names::a_large_directory_is_read_whole,
                names::what_is_no_file_is_made,
                names::times_are_kept,
                content::bytes_come_back,
                content::holes_are_found,
                content::appends_follow_one_another,
                content::direct_and_mapped_agree,
                content::direct_writes_are_seen_by_buffered_readers,
                content::ranges_are_copied,
                content::an_unlinked_file_lives_while_it_is_open,
                content::many_write_at_once,
                users::others_are_kept_out,
                users::writes_take_privileges_away,
                users::directories_hand_down_group_and_lists,
                users::attributes_have_namespaces,
                foreign::pjdfstest,
                foreign::fsx_through_the_cache,
                foreign::fsx_with_writeback,
                differential::as_the_kernels_own,
            ]
        );
    };
}

all_suites!(naive, crate::rig::naive);
all_suites!(local, crate::rig::local);
all_suites!(served, crate::rig::shared);
all_suites!(journaled, crate::rig::journaled);
all_suites!(writeback, |env| crate::rig::in_place(env, thalweg_store::inplace::Mode::Writeback));
all_suites!(ordered, |env| crate::rig::in_place(env, thalweg_store::inplace::Mode::Ordered));
all_suites!(data, |env| crate::rig::in_place(env, thalweg_store::inplace::Mode::Data));
all_suites!(wasteless, |env| crate::rig::in_place(env, thalweg_store::inplace::Mode::Wasteless));
all_suites!(selective, |env| crate::rig::in_place(env, thalweg_store::inplace::Mode::Selective));

//! Stores over other stores.

use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use uuid::Uuid;

use super::{
    Applied, BlockStore, BlockVersion, Blocks, Epoch, Hints, Hold, Lba, Lineage, Locations,
    Position, Relation, Retention, StoreError, Version, Versions, WriteList,
};

/// A future as `async_trait` returns it. A forwarded call returns the one of the store below: it costs no allocation.
type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Declares [`Layer`], and implements the traits of a block store by it. Each trait lists its methods, those that wait
/// behind the others.
macro_rules! layer {
    ($(
        $trait:ident {
            $(fn $method:ident($($arg:ident: $of:ty),*) $(-> $returned:ty)?;)*
            $(async fn $waiting:ident($($waiting_arg:ident: $waiting_of:ty),*) -> $ended:ty;)*
        }
    )*) => {
        /// A store that changes something about the one below it. Methods that it does not define go there as they are.
        ///
        /// With `async_trait`, as the traits whose methods it has.
        pub trait Layer: Send + Sync + fmt::Debug + 'static {
            /// The store below.
            fn below(&self) -> &dyn BlockStore;
            $($(
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($method), "`].")]
                fn $method(&self, $($arg: $of),*) $(-> $returned)? {
                    self.below().$method($($arg),*)
                }
            )*)*
            $($(
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($waiting), "`].")]
                fn $waiting<'life0, 'async_trait>(
                    &'life0 self,
                    $($waiting_arg: $waiting_of),*
                ) -> Pending<'async_trait, $ended>
                where
                    'life0: 'async_trait,
                    Self: 'async_trait,
                {
                    self.below().$waiting($($waiting_arg),*)
                }
            )*)*
        }

        $(
            impl<L: Layer> $trait for L {
                $(
                    fn $method(&self, $($arg: $of),*) $(-> $returned)? {
                        Layer::$method(self, $($arg),*)
                    }
                )*
                $(
                    fn $waiting<'life0, 'async_trait>(
                        &'life0 self,
                        $($waiting_arg: $waiting_of),*
                    ) -> Pending<'async_trait, $ended>
                    where
                        'life0: 'async_trait,
                        Self: 'async_trait,
                    {
                        Layer::$waiting(self, $($waiting_arg),*)
                    }
                )*
            }
        )*
    };
}

layer! {
    Blocks {
        fn blocks() -> u64;
        fn epoch() -> Epoch;
        fn now() -> Version;
        fn is_read_only() -> bool;
        fn allocation(lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)>;
        fn room() -> Option<u64>;
        fn max_transaction() -> usize;
        async fn read(lba: Lba, count: u64, at: Version) -> Result<Vec<Option<Bytes>>, StoreError>;
        async fn read_newest(
            lba: Lba,
            count: u64
        ) -> Result<(Version, Vec<Option<Bytes>>), StoreError>;
        async fn submit(writes: WriteList, retention: Retention) -> Result<Applied, StoreError>;
        async fn discard(lba: Lba, count: u64) -> Result<Version, StoreError>;
        async fn sync(version: Version) -> Result<(), StoreError>;
    }
    Versions {
        fn hold(version: Version) -> Option<Hold>;
        fn hold_since(version: Version) -> Option<Hold>;
        fn hold_synced() -> Option<Hold>;
        fn synced() -> Option<Version>;
        fn oldest() -> Version;
        fn locate(lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError>;
        fn lapse_point(most: usize) -> Option<Version>;
        fn holds_take_room() -> bool;
        async fn versions(lba: Lba) -> Result<Vec<BlockVersion>, StoreError>;
    }
    Lineage {
        fn position() -> Option<Position>;
        fn position_of(version: Version) -> Option<Position>;
        fn timeline() -> Option<Uuid>;
        fn relation(position: Position) -> Option<Relation>;
        fn term() -> u32;
        fn is_fenced() -> bool;
        async fn reached(position: Position) -> Result<(), StoreError>;
        async fn replicated(version: Version) -> bool;
        async fn submit_at(
            version: Version,
            writes: WriteList,
            retention: Retention
        ) -> Result<Applied, StoreError>;
    }
    Hints {
        fn peek(lba: Lba, at: Version) -> Option<Option<Bytes>>;
        fn please_cache(lba: Lba);
    }
}

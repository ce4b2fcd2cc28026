//! The user that a call of a client counts for: the server and its client agree on it.

use thalweg_fs::handle::{Credentials, MAX_GROUPS};
use thalweg_net::keys::{Nobody, Squash};

/// The user whose permissions count for a call that is made for `user`; `None` when the server trusts the client to have
/// checked them. A call that is made for no user counts as one of root. The result is the same for its own result.
pub(crate) fn acting(squash: Squash, user: Option<&Credentials>) -> Option<Credentials> {
    let is_id = |id: u32| id != 0 && id != u32::MAX;
    let of = |nobody: Nobody| Credentials::new(nobody.uid, nobody.gid, &[]);
    let (nobody, user) = match (squash, user) {
        (Squash::None, _) => return None,
        (Squash::Root(nobody), Some(user)) if is_id(user.uid) => (nobody, user),
        (Squash::Root(nobody) | Squash::All(nobody), _) => return Some(of(nobody)),
    };
    let groups = user.groups.iter().take(MAX_GROUPS).copied().filter(|group| is_id(*group));
    let gid = if is_id(user.gid) { user.gid } else { nobody.gid };
    Some(Credentials { uid: user.uid, gid, groups: groups.collect() })
}

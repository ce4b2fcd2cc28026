//! Files of the greatest size.

use thalweg_fs::{Allocation, Filesystem};
use thalweg_sim::run;

use crate::support::*;

const BLOCK: u64 = 4096;

#[test]
fn a_file_of_the_greatest_size_keeps_its_bytes() {
    run(1, |env| async move {
        let fs = filesystem(&env).await;
        let a = create(&fs, ROOT, "a").await;
        let (bytes, most) = (pattern(3, 3 * BLOCK as usize), 16 << 40);
        write(&fs, a, 0, &bytes).await;
        for size in [most, most - 1, most - BLOCK + 1, most, most - BLOCK, most] {
            truncate(&fs, a, size).await;
            assert!(read(&fs, a, 0, bytes.len()).await == bytes, "bytes are lost at size {size}");
            assert_eq!(attributes(&fs, a).await.stored, 3 * BLOCK, "{size}");
        }
        write(&fs, a, most - 3, b"end").await;
        for (size, end) in [(most, &b"end"[..]), (most - 1, b"en"), (most, b"en\0")] {
            truncate(&fs, a, size).await;
            assert_eq!(read(&fs, a, most - 3, 9).await, end, "{size}");
        }
        fs.allocate(a, most - 2 * BLOCK, 2 * BLOCK, Allocation::Punch).await.unwrap();
        assert_eq!(attributes(&fs, a).await.stored, 3 * BLOCK);
        assert!(read(&fs, a, 0, bytes.len()).await == bytes);
    });
}

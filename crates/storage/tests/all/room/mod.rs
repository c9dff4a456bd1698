//! Parts of engines of the tests that ask the engine inside them.

/// Defines the calls of [`stele_storage::LogStore`] about room as those of `self.inner`.
macro_rules! room_of_inner {
    () => {
        fn admit(&self, bytes: u64) -> stele_types::Result<()> {
            self.inner.admit(bytes)
        }

        fn admit_append(&self, bytes: u64) -> bool {
            self.inner.admit_append(bytes)
        }

        fn space(&self) -> stele_storage::Space {
            self.inner.space()
        }

        fn take_truncation_request(&self) -> bool {
            self.inner.take_truncation_request()
        }
    };
}

pub(crate) use room_of_inner;

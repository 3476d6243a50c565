//! The macro that declares the raw structures of fixed size: fields with their offsets, asserted at
//! compile time.
//!
//! A declaration yields the zerocopy struct (public fields, in ext4's structures under ext4's
//! names; alignment 1, no padding), the asserts for each field's offset and the total size, `SIZE`,
//! `zeroed`, and `FIELDS`: the declared fields as data for field-by-field tests and mutators.

/// Name, offset and size in bytes of one on-disk field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    /// The field's name; ext4's in a structure of ext4.
    pub name: &'static str,
    /// Byte offset from the start of the structure.
    pub offset: usize,
    /// Size in bytes (arrays: of the whole array).
    pub size: usize,
}

macro_rules! on_disk {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$size:literal] {
            $( $(#[$field_meta:meta])* $offset:literal $field:ident: $type:ty, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )+
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size, concat!("size of ", stringify!($name)));
            $(
                assert!(
                    core::mem::offset_of!($name, $field) == $offset,
                    concat!("offset of ", stringify!($field))
                );
            )+
        };

        impl $name {
            /// Size on disk in bytes.
            pub const SIZE: usize = $size;

            /// Every field with its offset and size, in disk order.
            pub const FIELDS: &'static [$crate::layout::FieldPlace] = &[
                $( $crate::layout::FieldPlace {
                    name: stringify!($field),
                    offset: $offset,
                    size: core::mem::size_of::<$type>(),
                }, )+
            ];

            /// A structure of zeroes.
            #[must_use]
            pub fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}

pub(crate) use on_disk;

//! Data of the host, and its parts: the fields are Burn's own business from 0.22 on, which has accessors.

pub(crate) use burn_backend::TensorData;
#[cfg(burn_021)]
pub use parts::DataParts;

#[cfg(burn_021)]
mod parts {
    use burn_backend::{DType, Shape, TensorData};
    use burn_std::Bytes;

    /// Reads the parts of data, under the names that Burn 0.22 gives them. It is put together by
    /// [`TensorData::from_bytes`].
    pub trait DataParts {
        /// Returns the shape.
        fn shape(&self) -> &Shape;
        /// Returns the type of the elements.
        fn dtype(&self) -> DType;
        /// Returns the elements, row-major.
        fn bytes(&self) -> &Bytes;
        /// Takes it apart.
        fn into_parts(self) -> (Bytes, Shape, DType);
    }

    impl DataParts for TensorData {
        #[inline]
        fn shape(&self) -> &Shape {
            &self.shape
        }

        #[inline]
        fn dtype(&self) -> DType {
            self.dtype
        }

        #[inline]
        fn bytes(&self) -> &Bytes {
            &self.bytes
        }

        #[inline]
        fn into_parts(self) -> (Bytes, Shape, DType) {
            (self.bytes, self.shape, self.dtype)
        }
    }
}

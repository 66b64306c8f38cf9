use burn_dist_plan::policy::Fp8::{E4M3, E5M2};

use super::*;

fn product(scales: [Scales; 2]) -> Product {
    Product {
        m: 8192,
        n: 14336,
        k: 4096,
        formats: [E4M3, E5M2],
        scales,
        out: Out::BF16,
        bias: true,
    }
}

#[test]
fn variants() {
    let blocks = |a, b| Kernel::of(&product([a, b])).map(|kernel| kernel.blocks);
    assert_eq!(blocks(Scales::Tensor, Scales::Row), Ok(None));
    assert_eq!(blocks(Scales::Tile, Scales::Block), Ok(Some(Scales::Block)));
    let columns = Scales::TileOfColumn;
    assert_eq!(blocks(Scales::Tile, columns), Ok(Some(columns)));
    assert_eq!(blocks(columns, columns), Ok(Some(columns)));
    assert_eq!(
        blocks(Scales::Tile, Scales::BlockOfColumn),
        Ok(Some(Scales::Block))
    );
    assert!(blocks(Scales::Tile, Scales::Tile).is_err());
    assert!(blocks(Scales::Block, Scales::Tile).is_err());
    assert!(blocks(Scales::Tile, Scales::Row).is_err());
    let sized = |m, n, k| {
        Kernel::of(&Product {
            m,
            n,
            k,
            ..product([Scales::Tensor; 2])
        })
    };
    assert!(sized(1, 16, 16).is_ok());
    assert!(sized(16, 24, 16).is_err() && sized(16, 16, 8).is_err() && sized(0, 16, 16).is_err());
}

#[test]
fn what_a_kernel_has_to_know() {
    let told = |scales| {
        let info = Kernel::info(&product(scales));
        let mut words: Vec<u32> = info
            .iter()
            .flat_map(|v| [*v as u32, (v >> 32) as u32])
            .collect();
        assert_eq!(words.len(), 8);
        assert_eq!(words.pop(), Some(0));
        words
    };
    assert_eq!(
        told([Scales::Tensor, Scales::Row]),
        [8192, 14336, 4096, 0, 0, 1, 0]
    );
    assert_eq!(
        told([Scales::Tile, Scales::Block]),
        [8192, 14336, 4096, 32, 1, 32, 1]
    );
}

#[test]
fn grids() {
    let small = Product {
        m: 16,
        n: 16,
        k: 16,
        ..product([Scales::Tensor; 2])
    };
    assert_eq!(Kernel::blocks(&small, 132), 1);
    assert_eq!(Kernel::blocks(&product([Scales::Tensor; 2]), 132), 132);
}

/// The demands of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management").
#[test]
fn maps_are_what_the_driver_takes() {
    for (m, n, k) in [(8192, 14336, 4096), (1, 16, 16), (2048, 4096, 144)] {
        for map in TensorMap::of(&Product {
            m,
            n,
            k,
            ..product([Scales::Tensor; 2])
        }) {
            assert!(map.tile.iter().all(|size| (1..=256).contains(size)));
            assert_eq!(
                map.tile[1], 128,
                "the inner box is no wider than the swizzle"
            );
            assert!(map.shape[1].is_multiple_of(16), "the stride of rows");
        }
    }
    let [a, b] = TensorMap::of(&product([Scales::Tensor; 2]));
    assert_eq!((a.shape, a.tile), ([8192, 4096], [256, 128]));
    assert_eq!((b.shape, b.tile), ([14336, 4096], [128, 128]));
    assert_eq!(a.tile[0] * a.tile[1], geometry::A_BYTES);
    assert_eq!(b.tile[0] * b.tile[1], geometry::B_BYTES);
}

/// The source that is generated; the rest is `device.cu` and `kernel.cu`.
#[test]
fn golden_source() {
    let kernel = Kernel::of(&product([Scales::Tile, Scales::Block])).unwrap();
    let device = kernel.device();
    let generated = device.strip_prefix(include_str!("device.cu")).unwrap();
    insta::assert_snapshot!(kernel.constants() + generated);
}

"""SOURCES: what each data set is, the digests of its files as they were published, and who serves them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forgetfree.lab.benchmarks.formats import (
    CIFAR10_BYTES,
    CIFAR10_TEST,
    CIFAR10_TRAIN,
    CIFAR100_BYTES,
    drawings,
    photographs,
    read_idx,
    read_records,
    read_svhn,
)


@dataclass(frozen=True)
class Original:
    """One file as it was published."""

    sha256: str
    size: int
    rows: int
    """How many samples it holds."""
    unpacked: Mapping[str, str] = field(default_factory=dict)
    """What an archive holds, path → SHA-256: laid out in the same folder, it stands in for the archive."""
    members: str = ""
    """Digest of the names, sizes and CRC-32 of a zip's images: the same ones packed anew stand in for the archive."""


@dataclass(frozen=True)
class Source:
    """A data set: its files by name, the addresses that serve them all, and what may be done with them."""

    title: str
    homepage: str
    licence: str
    mirrors: tuple[str, ...]
    """A file's address is a mirror followed by its name."""
    files: Mapping[str, Original]
    rows: Callable[[Path], int]
    """How many samples a file holds; a `DataError` if it cannot be read."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(original.size for original in self.files.values())

    @property
    def samples(self) -> int:
        """Samples in all; a file of labels belongs to one of images."""
        return sum(original.rows for name, original in self.files.items() if "-labels-" not in name)


SOURCES: dict[str, Source] = {
    "mnist": Source(
        title="MNIST: 60 000 and 10 000 handwritten digits, 28×28, grey",
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0; copyright Yann LeCun and Corinna Cortes, derived from NIST",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files={
            "train-images-idx3-ubyte.gz": Original(
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422, 60_000
            ),
            "train-labels-idx1-ubyte.gz": Original(
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881, 60_000
            ),
            "t10k-images-idx3-ubyte.gz": Original(
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877, 10_000
            ),
            "t10k-labels-idx1-ubyte.gz": Original(
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542, 10_000
            ),
        },
        rows=lambda path: len(read_idx(path)),
    ),
    "fashion-mnist": Source(
        title="Fashion-MNIST: 60 000 and 10 000 articles of clothing in 10 classes, 28×28, grey",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT; copyright Zalando SE",
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        files={
            "train-images-idx3-ubyte.gz": Original(
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880, 60_000
            ),
            "train-labels-idx1-ubyte.gz": Original(
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515, 60_000
            ),
            "t10k-images-idx3-ubyte.gz": Original(
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102, 10_000
            ),
            "t10k-labels-idx1-ubyte.gz": Original(
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148, 10_000
            ),
        },
        rows=lambda path: len(read_idx(path)),
    ),
    "notmnist": Source(
        title="notMNIST: 10 000 letters A to J in many typefaces, 28×28, grey, in the files of MNIST's test set",
        homepage="https://github.com/davidflanagan/notMNIST-to-MNIST",
        licence="none stated; made by Yaroslav Bulatov, posted there with his permission",
        mirrors=(
            "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/master/",
            "https://github.com/davidflanagan/notMNIST-to-MNIST/raw/master/",
        ),
        files={
            "t10k-images-idx3-ubyte.gz": Original(
                "70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7", 3_172_375, 10_000
            ),
            "t10k-labels-idx1-ubyte.gz": Original(
                "1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b", 5_118, 10_000
            ),
        },
        rows=lambda path: len(read_idx(path)),
    ),
    "cifar10": Source(
        title="CIFAR-10: 50 000 and 10 000 photographs of 10 classes, 32×32, colour",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        files={
            "cifar-10-binary.tar.gz": Original(
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171, 60_000
            )
        },
        rows=lambda path: _count(path, CIFAR10_TRAIN + CIFAR10_TEST, CIFAR10_BYTES),
    ),
    "svhn": Source(
        title="SVHN: 73 257 and 26 032 digits cut out of photographs of house numbers, 32×32, colour",
        homepage="http://ufldl.stanford.edu/housenumbers/",
        licence="for non-commercial use only; cite Netzer et al., Reading Digits in Natural Images, 2011",
        mirrors=("http://ufldl.stanford.edu/housenumbers/",),
        files={
            "train_32x32.mat": Original(
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794, 73_257
            ),
            "test_32x32.mat": Original(
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384, 26_032
            ),
        },
        rows=lambda path: len(read_svhn(path)),
    ),
    "cifar100": Source(
        title="CIFAR-100: 50 000 and 10 000 photographs of 100 classes in 20 superclasses, 32×32, colour",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        files={
            "cifar-100-binary.tar.gz": Original(
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                168_513_733,
                60_000,
                unpacked={
                    "cifar-100-binary/train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    "cifar-100-binary/test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                },
            )
        },
        rows=lambda path: _count(path, [f"cifar-100-binary/{part}.bin" for part in ("train", "test")], CIFAR100_BYTES),
    ),
    "omniglot": Source(
        title="Omniglot: 1 623 handwritten characters of 50 alphabets, 20 drawings each, 105×105, black on white",
        homepage="https://github.com/brendenlake/omniglot",
        licence="MIT; copyright Brenden Lake",
        mirrors=(
            "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
            "https://github.com/brendenlake/omniglot/raw/master/python/",
        ),
        files={
            "images_background.zip": Original(
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                9_464_212,
                19_280,
                members="976a485db5c9a8f1fef6bee96a66cc9327ef5588de9a6bfb18b846f53dc18f09",
            ),
            "images_evaluation.zip": Original(
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
                6_462_886,
                13_180,
                members="34c0ee36535f56810814ab60955da1eb7268f5046fbe5047b90f9cb1f8660092",
            ),
        },
        rows=lambda path: len(drawings(path)),
    ),
    "tiny-imagenet": Source(
        title="Tiny ImageNet: 100 000 and 10 000 photographs of 200 classes, 64×64, colour",
        homepage="http://cs231n.stanford.edu/",
        licence="none stated; from ImageNet, which is for non-commercial research",
        mirrors=("http://cs231n.stanford.edu/",),
        files={
            "tiny-imagenet-200.zip": Original(
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821", 248_100_043, 110_000
            )
        },
        rows=lambda path: sum(map(len, photographs(path))),
    ),
}


def _count(archive: Path, members: Sequence[str], width: int) -> int:
    return sum(map(len, read_records(archive, members, width)))

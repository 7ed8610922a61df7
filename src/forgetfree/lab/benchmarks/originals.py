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
from forgetfree.lab.benchmarks.fscil_formats import birds, named_photographs, read_list


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
    counted: bool = False
    """Several packings circulate and none is the authors': any that holds all samples stands in for this one."""


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


FSCIL_LISTS = {
    "cifar100/session_1.txt": Original(
        "5f402fb2c5260a05bb02ea000f9b9e32f23e305281969afa6ea47a9a22b69cf7", 173_394, 30_000
    ),
    "cifar100/session_2.txt": Original("654db7b72e383a1aac94a4e570ea26c9f3cb8b7bf95a7aff2a9e1626f4e0b330", 140, 25),
    "cifar100/session_3.txt": Original("a466c0f920549096435c9b298e9f52f2b4a676db34f2c54de04f4147759a2eea", 140, 25),
    "cifar100/session_4.txt": Original("c2d0f0a6db516358055d448b1dd8033a778ae7ba30de78adbd8ea2e1b94282b0", 140, 25),
    "cifar100/session_5.txt": Original("2907fe7d341f9f4da0c2cdf59bcf33a50619f41e9ebd3232fe2c6c11bc30bfa4", 140, 25),
    "cifar100/session_6.txt": Original("87f70d04e01acb3ba0bbce24f84bf78ee905721d3609e53c5f11bf92d3237197", 140, 25),
    "cifar100/session_7.txt": Original("70131153942c3a30418843097a482d0e24dedbaa394876b101db205a5099a595", 140, 25),
    "cifar100/session_8.txt": Original("8bcefabac5ff2d3086e3cc097b306713661f07aa670ef3935570226293e1c2f1", 140, 25),
    "cifar100/session_9.txt": Original("242fd41330db6081d11216a8324f92aebd64545b2171bd567a162a7521a62ed7", 140, 25),
    "mini_imagenet/test.txt": Original(
        "c714516c610cdb0fc558785259e06768bcddea6c2a57b1b5464be0e04fae0a77", 510_000, 10_000
    ),
    "mini_imagenet/session_1.txt": Original(
        "af28c169b628923284b9905238a90a97b4a95949f66dd04f2853467a16e090a3", 1_560_000, 30_000
    ),
    "mini_imagenet/session_2.txt": Original(
        "0ca2664ee5be9852f7688e9f691397ba9ac23333b64afcbbb20012a22adee16a", 1_300, 25
    ),
    "mini_imagenet/session_3.txt": Original(
        "7a2b2d26f529247dc725d406125eab2a698523d8c669cd1e399c26d068e6d6fa", 1_300, 25
    ),
    "mini_imagenet/session_4.txt": Original(
        "e70403ced5ac32b811962cdb498b0e01bb4444da0d20539f6f183db17fe158c2", 1_300, 25
    ),
    "mini_imagenet/session_5.txt": Original(
        "4b8aa1d08d1a0aa2a2ed6baefc3aa2e801ea0a6924a8056ca4c4737d60ac0460", 1_300, 25
    ),
    "mini_imagenet/session_6.txt": Original(
        "c78365d507400f170186bc321bfa233dde1160c6df6405fba242dedda59d3070", 1_300, 25
    ),
    "mini_imagenet/session_7.txt": Original(
        "ad01e6e88f92b8dbcfa38831051f41a2639b2f455695bd2bb5db5cd1129ef88a", 1_300, 25
    ),
    "mini_imagenet/session_8.txt": Original(
        "ab39d572974acdd3e542040f3cd18b72a0fc97980f754b9335f99ca3df7f1847", 1_300, 25
    ),
    "mini_imagenet/session_9.txt": Original(
        "e808c65f6e081f5b0061cc4a8bdec51dff4ae99cb37193d239a319e388ec1226", 1_300, 25
    ),
    "cub200/session_1.txt": Original(
        "51ac011fc2cf87c374350a70ca9fbe210eb10f406b24b6675e2e143586ca24fc", 216_527, 3_000
    ),
    "cub200/session_2.txt": Original("24d1ebea2ff962c13475ad7aa660c1e6cbeb8ecca053d82d22fabc7e7a323400", 3_445, 50),
    "cub200/session_3.txt": Original("531b4cdc44b54d18059ed7f2a758fc22a55ea2f3eb0b814b38a508e6ea3fb371", 3_659, 50),
    "cub200/session_4.txt": Original("b0415d1fe51d8b9216f0097fdc73817b7813b5b5c8a3e2fbaf43131abff4becf", 3_710, 50),
    "cub200/session_5.txt": Original("44e4ae53379abbf93767bc4937c36eb2e72d1741875805128f1bfee1fa6093a8", 3_650, 50),
    "cub200/session_6.txt": Original("dd2ac89166e698b316e24b4cbff025c5aaaf517712b94f63930127785010af3c", 3_340, 50),
    "cub200/session_7.txt": Original("ee5985b9b76466d368116cf25bce2ba994d9b0d4a79ac4e9055cffaff1771aa3", 3_980, 50),
    "cub200/session_8.txt": Original("aebaffe49fa56c8a4e4bdaa1ad2d7bb9f54647369a2985f57779c5ce18b4230d", 3_800, 50),
    "cub200/session_9.txt": Original("69e3c194ea2d48cf2a99a7223ca094d14a3d34f308985def22587f324f3b24dc", 3_690, 50),
    "cub200/session_10.txt": Original("6f669352b66fecfb9b001263e9c7a47487a65f244ad5676d0790b06b55de6db4", 4_070, 50),
    "cub200/session_11.txt": Original("fd3ceecd3e52d9c8f646bab41e3562d0f545c8746618fc5693ff85681a0506c1", 3_410, 50),
}
"""TOPIC's lists; session 1 is the base session."""

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
    "mini-imagenet": Source(
        title="miniImageNet: 60 000 photographs of 100 classes by their file names, JPEG, colour",
        homepage="https://github.com/twitter-research/meta-learning-lstm",
        licence="none stated; from ImageNet, which is for non-commercial research",
        mirrors=("https://huggingface.co/datasets/pancake/few_shot_datasets/resolve/main/",),
        files={
            "mini-imagenet.zip": Original(
                "fdc1a84b906855d49382fee772675b070354b6d906adfe143c009cbfb9b87a57",
                2_089_692_471,
                60_000,
                counted=True,
            )
        },
        rows=lambda path: len(named_photographs(path)),
    ),
    "cub200": Source(
        title="CUB-200-2011: 5 994 and 5 794 photographs of 200 species of birds, JPEG, colour",
        homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        licence="for non-commercial research and education; cite Wah et al., Caltech-UCSD Birds-200-2011",
        mirrors=(
            "https://data.caltech.edu/records/65de6-vp158/files/",
            "https://s3.amazonaws.com/fast-ai-imageclas/",
        ),
        files={
            "CUB_200_2011.tgz": Original(
                "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081", 1_150_585_339, 11_788
            )
        },
        rows=lambda path: len(birds(path)),
    ),
    "fscil-splits": Source(
        title="TOPIC's lists of the images of every few-shot session: CIFAR-100, miniImageNet, CUB-200",
        homepage="https://github.com/icoz69/CEC-CVPR2021",
        licence="MIT; copyright icoz69 (CEC), first published at https://github.com/xyutao/fscil",
        mirrors=(
            "https://raw.githubusercontent.com/icoz69/CEC-CVPR2021/main/data/index_list/",
            "https://raw.githubusercontent.com/xyutao/fscil/master/data/index_list/",
        ),
        files=FSCIL_LISTS,
        rows=lambda path: len(read_list(path)),
    ),
}


def _count(archive: Path, members: Sequence[str], width: int) -> int:
    return sum(map(len, read_records(archive, members, width)))

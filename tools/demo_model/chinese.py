# ruff: noqa: RUF001 (Chinese has its own comma and colon)
"""The Chinese words and sentences of the demo world."""

import random
from collections.abc import Sequence
from typing import ClassVar

from tools.demo_model.english import English, Words


class Chinese(English):
    """The same attributes as in English, said in Chinese."""

    COLOURS: ClassVar[Words] = {
        "red": ("红色", "鲜红色"),
        "orange": ("橙色", "橘色"),
        "yellow": ("黄色", "柠檬黄"),
        "green": ("绿色", "草绿色"),
        "cyan": ("青色", "天蓝色"),
        "blue": ("蓝色", "深蓝色"),
        "purple": ("紫色", "紫罗兰色"),
        "white": ("白色", "雪白色"),
    }
    SHAPES: ClassVar[Words] = {
        "circle": ("圆形", "圆球", "圆盘"),
        "square": ("正方形", "方块"),
        "triangle": ("三角形",),
        "star": ("星星", "五角星"),
    }
    SIZES: ClassVar[Words] = {
        "small": ("小", "很小的", "小小的"),
        "medium": ("", "中等大小的"),
        "large": ("大", "很大的", "巨大的"),
    }
    MOTIONS: ClassVar[Words] = {
        "right": ("从左向右移动", "向右滑动", "从左边移到右边", "往右飘"),
        "left": ("从右向左移动", "向左滑动", "从右边移到左边", "往左飘"),
        "up": ("向上移动", "上升", "从下往上升起"),
        "down": ("向下移动", "下沉", "从上往下落"),
        "bounce": ("弹跳", "不停地弹跳", "上下跳动"),
        "orbit": ("绕着中心转圈", "围绕中间旋转", "一圈一圈地转"),
        "grow": ("变大", "越来越大", "慢慢长大"),
        "shrink": ("变小", "越来越小", "慢慢缩小"),
        "still": ("静止不动", "停在原地", "一动不动"),
    }
    SOUNDS: ClassVar[Words] = {
        "low": ("低音", "低沉的嗡嗡声"),
        "middle": ("中音", "音调适中的声音"),
        "high": ("高音", "尖锐的高音"),
        "beeps": ("哔哔声", "短促的嘀嘀声"),
        "wash": ("海浪般的噪声", "风声", "沙沙声"),
        "silence": ("没有声音", "一片寂静"),
    }
    BEATS: ClassVar[Sequence[str]] = ("每次弹跳都有一声嘀", "随着弹跳的哔哔声")
    GROUNDS: ClassVar[Words] = {
        "plain": ("纯色背景", "单色的深色背景"),
        "gradient": ("渐变背景", "明暗渐变的背景"),
    }
    REFERENCES: ClassVar[Words] = {
        "image": ("图片里的{}物体", "图中的{}形状"),
        "video": ("视频里的{}物体", "视频中的{}形状"),
    }
    RECORDED: ClassVar[Sequence[str]] = ("录音里的声音", "录下的声音")
    SENTENCES: ClassVar[Sequence[str]] = (
        "{ground}上，{what}{moves}，{sound}",
        "{what}{moves}，{sound}",
        "{what}在{ground}前{moves}，伴着{sound}",
        "{ground}，{sound}，{what}{moves}",
        "一段视频：{what}{moves}，配着{sound}",
    )
    AND: ClassVar[Sequence[str]] = ("{}和{}", "{}与{}", "{}，还有{}")

    @classmethod
    def one_object(cls, size: str, colour: str, shape: str, source: random.Random) -> str:
        """One object with its measure word."""
        said = source.choice(cls.SIZES[size]) + source.choice(cls.COLOURS[colour])
        return f"一个{said}的{source.choice(cls.SHAPES[shape])}"

    @classmethod
    def referred(cls, size: str, reference: str, source: random.Random) -> str:
        """The object that a reference shows."""
        shown = cls.REFERENCES["video" if reference == "video" else "image"]
        return source.choice(shown).format(source.choice(cls.SIZES[size]))

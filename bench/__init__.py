"""What is measured for speed and size: ratios in one run, tables printed, nothing asserted.

python -m bench            everything
python -m bench import     one table
"""
